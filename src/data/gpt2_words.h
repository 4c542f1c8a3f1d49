// The pieces into which GPT-2 cuts a text before it merges bytes: what its regular expression
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// finds one after the other (github.com/openai/gpt-2, src/encoder.py).
#pragma once

#include <string_view>

namespace lockstep::data {

// How many bytes the first piece of `text` has; `text` is not empty. BadInput where it is not
// UTF-8: `source` is what the message calls `whole`, which ends with `text`.
[[nodiscard]] std::size_t first_piece(std::string_view text, std::string_view whole,
                                      std::string_view source);

// Returns false if no word of GPT-2 contains these bytes, so that a merge which makes them belongs
// to another pattern of words. Only ASCII is looked at, whose characters are of the same kinds in
// each version of Unicode.
[[nodiscard]] bool is_within_gpt2_word(std::string_view bytes);

}  // namespace lockstep::data
