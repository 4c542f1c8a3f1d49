// The contents of the two files of a byte-pair encoding, checked.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::data {

struct BpeTables {
  struct Merge {
    std::int32_t rank;    // the first of the list has 0
    std::int32_t result;  // the token that the two become
  };

  std::unordered_map<std::string, std::int32_t> numbers;  // by GPT-2's spelling
  std::vector<std::string> bytes;                         // of each token
  std::array<std::int32_t, 256> of_byte{};                // the token of a single byte
  std::unordered_map<std::uint64_t, Merge> merges;        // by pair_key()
};

[[nodiscard]] constexpr std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

// As Bpe::load().
[[nodiscard]] BpeTables read_bpe_tables(const std::filesystem::path& vocabulary,
                                        const std::filesystem::path& merges);

}  // namespace lockstep::data
