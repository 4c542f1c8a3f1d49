// Unicode's general categories, as far as pre-tokenization asks for them.
#pragma once

namespace lockstep::data {

// \p{L} and \p{N} of regular expressions.
[[nodiscard]] bool is_letter(char32_t code_point);
[[nodiscard]] bool is_number(char32_t code_point);
// The property White_Space, which is \s of them.
[[nodiscard]] bool is_white_space(char32_t code_point);

}  // namespace lockstep::data
