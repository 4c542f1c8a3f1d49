// Vocabulary: which characters a text is made of, and the number (token) of each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

// A value; copies are independent. Two kinds: all 256 bytes, which every text is made of, or the
// characters (Unicode code points of UTF-8) that occur in some text, numbered in ascending order,
// as nanoGPT's character data sets do.
class Vocabulary {
 public:
  [[nodiscard]] static Vocabulary bytes();
  // BadInput when `text` is empty or is not UTF-8; `source` is what the message calls it.
  [[nodiscard]] static Vocabulary characters(std::string_view text,
                                             std::string_view source = "text");

  // One string for a file, and back: "bytes", or "characters:" and the characters in order as
  // UTF-8.
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] static Vocabulary from_text(std::string_view text);

  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] bool is_bytes() const { return symbols_.empty(); }
  // The characters in order as UTF-8; empty for bytes.
  [[nodiscard]] std::string alphabet() const;

  // One token a character: uint8 where size() <= 256, else int32. BadInput names the first
  // character outside the vocabulary and where it is (offset in bytes, line and column from 1).
  [[nodiscard]] at::Tensor encode(std::string_view text, std::string_view source = "text") const;
  // The text of a one-dim integer tensor. InvalidArgument names a token that is not below size().
  [[nodiscard]] std::string decode(const at::Tensor& tokens) const;

  friend bool operator==(const Vocabulary&, const Vocabulary&) = default;

 private:
  std::vector<char32_t> symbols_;  // ascending; empty: bytes
};

}  // namespace lockstep::data

#pragma GCC visibility pop
