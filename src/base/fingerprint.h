// 64-bit fingerprints of values on which ranks must agree: names, shapes, settings. Fingerprints
// are the same on every host and in every build, and can be computed at compile time. Fingerprints
// are not cryptographic: they detect mistakes, not attacks.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

// Spreads every input bit over the whole word with the finaliser of SplitMix64 (Steele, Lea, Flood,
// OOPSLA 2014).
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// Returns the fingerprint of a text: FNV-1a (Fowler, Noll, Vo), then mix_bits().
[[nodiscard]] constexpr std::uint64_t fingerprint(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  return mix_bits(hash);
}

// Combines two fingerprints. fingerprint_of(op, dtype, count) is the fingerprint of a sequence: the
// order and number of the values matter.
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
