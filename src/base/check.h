// check(): the first lines of a public function say what its arguments must be.
//
//   check(root >= 0 && root < size, "broadcast: root must be 0..{}, found {}", size - 1, root);
//
// A function, so its arguments are always evaluated: pass values, not work. The text is put
// together only on failure.
#pragma once

#include "base/format.h"

#include <lockstep/base/error.h>

#include <string>
#include <utility>

namespace lockstep {
namespace detail {
[[noreturn]] void throw_invalid_argument(const std::string& text);
[[noreturn]] void throw_bad_input(const std::string& text);
}  // namespace detail

// Throws InvalidArgument unless `condition`: the caller's program is wrong.
template <typename... Arguments>
void check(bool condition, FormatPattern<sizeof...(Arguments)> format,
           const Arguments&... arguments) {
  if (!condition) [[unlikely]]
    detail::throw_invalid_argument(formatted(format, arguments...));
}

// Throws BadInput unless `condition`: a file, a variable, an option or a peer is wrong.
template <typename... Arguments>
void check_input(bool condition, FormatPattern<sizeof...(Arguments)> format,
                 const Arguments&... arguments) {
  if (!condition) [[unlikely]]
    detail::throw_bad_input(formatted(format, arguments...));
}

}  // namespace lockstep
