// The two files of a small byte-pair encoding in GPT-2's spelling: all bytes, and four merges.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace lockstep::test {

// Returns the character by which GPT-2 spells a byte, in UTF-8.
inline std::string spelled_byte(int byte) {
  auto prints = [](int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); };
  int point = byte;
  if (!prints(byte)) {
    point = 256;
    for (int before = 0; before < byte; ++before) point += prints(before) ? 0 : 1;
  }
  if (point < 0x80) return {static_cast<char>(point)};
  return {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
}

// Writes the files. Tokens 256 to 259 are "an", "ab", "na" and "anan"; the tokens of `more` follow.
inline void write_small_bpe(const std::filesystem::path& folder,
                            const std::vector<std::string>& more = {}) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(spelled_byte(byte));
  for (const char* token : {"an", "ab", "na", "anan"}) tokens.emplace_back(token);
  tokens.insert(tokens.end(), more.begin(), more.end());
  std::ofstream vocabulary(folder / "vocab.json");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool is_escaped = tokens[i] == "\"" || tokens[i] == "\\";
    vocabulary << (i == 0 ? "{" : ", ") << '"' << (is_escaped ? "\\" : "") << tokens[i]
               << "\": " << i;
  }
  vocabulary << "}";
  std::ofstream(folder / "merges.txt") << "a n\na b\nn a\nan an\n";
}

}  // namespace lockstep::test
