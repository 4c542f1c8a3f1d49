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

}  // namespace lockstep::data
