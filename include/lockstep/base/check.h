// check(): the first lines of a public function say what its arguments must be.
//
//   check(root >= 0 && root < size, "broadcast: root must be 0..{}, found {}", size - 1, root);
//
// A function, so its arguments are always evaluated: pass values, not work. The text is put together only on failure.
#pragma once

#include <lockstep/base/error.h>

#include <fmt/core.h>

#include <string>
#include <utility>

namespace lockstep {
namespace detail {
[[noreturn]] void throw_invalid_argument(fmt::string_view format, fmt::format_args arguments);
[[noreturn]] void throw_bad_input(fmt::string_view format, fmt::format_args arguments);
}  // namespace detail

// Throws InvalidArgument unless `condition`: the caller's program is wrong.
template <typename... Arguments>
void check(bool condition, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (!condition) [[unlikely]] detail::throw_invalid_argument(format, fmt::make_format_args(arguments...));
}

// Throws BadInput unless `condition`: a file, a variable, an option or a peer is wrong.
template <typename... Arguments>
void check_input(bool condition, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (!condition) [[unlikely]] detail::throw_bad_input(format, fmt::make_format_args(arguments...));
}

}  // namespace lockstep
