// check(): validates the arguments of a public function, in its first lines.
//
//   check(root >= 0 && root < size, "broadcast: root must be 0..{}, found {}", size - 1, root);
//
// check() is a function, so its arguments are always evaluated: do not pass expensive expressions.
// The message is formatted only on failure.
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

// Throws InvalidArgument unless `condition` holds: the calling program has an error.
template <typename... Arguments>
void check(bool condition, FormatPattern<sizeof...(Arguments)> format,
           const Arguments&... arguments) {
  if (!condition) [[unlikely]]
    detail::throw_invalid_argument(formatted(format, arguments...));
}

// Throws BadInput unless `condition` holds: a file, an environment variable, an option or a peer is
// invalid.
template <typename... Arguments>
void check_input(bool condition, FormatPattern<sizeof...(Arguments)> format,
                 const Arguments&... arguments) {
  if (!condition) [[unlikely]]
    detail::throw_bad_input(formatted(format, arguments...));
}

}  // namespace lockstep
