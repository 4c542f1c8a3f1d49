// 64-bit fingerprints of what ranks must agree on: names, shapes, settings. The same on every
// machine and in every build, and usable at compile time. Not cryptographic: they find mistakes,
// not attackers.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

// Spreads every input bit over the whole word: the finaliser of SplitMix64 (Steele, Lea, Flood,
// OOPSLA 2014).
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// Of a text: FNV-1a (Fowler, Noll, Vo), then mixed.
[[nodiscard]] constexpr std::uint64_t fingerprint(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  return mix_bits(hash);
}

// Of a sequence: fingerprint_of(op, dtype, count) and so on. The order and number of values matter.
[[nodiscard]] constexpr std::uint64_t combine_fingerprints(std::uint64_t first,
                                                           std::uint64_t second) {
  return mix_bits(first * 0x9e3779b97f4a7c15ULL + second + 0x632be59bd9b4e019ULL);
}

template <std::integral... Values>
[[nodiscard]] constexpr std::uint64_t fingerprint_of(Values... values) {
  std::uint64_t hash = sizeof...(values);
  ((hash = combine_fingerprints(hash, static_cast<std::uint64_t>(values))), ...);
  return hash;
}

template <std::integral Value>
[[nodiscard]] constexpr std::uint64_t fingerprint_of(std::span<const Value> values) {
  std::uint64_t hash = values.size();
  for (Value value : values) hash = combine_fingerprints(hash, static_cast<std::uint64_t>(value));
  return hash;
}

}  // namespace lockstep
