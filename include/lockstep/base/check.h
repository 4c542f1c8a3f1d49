// check(): the first lines of a public function say what its arguments must be.
//
//   check(root >= 0 && root < size, "broadcast: root must be 0..{}, found {}", size - 1, root);
//
// A function, so its arguments are always evaluated: pass values, not work. The text is put
// together only on failure.
#pragma once

#include <lockstep/base/error.h>

#include <fmt/core.h>

#include <string>
#include <utility>

namespace lockstep {
namespace detail {
// The text is made in the header, so that no type of fmt crosses into the library: LibTorch brings
// a copy of fmt of another version.
[[noreturn]] void throw_invalid_argument(const std::string& text);
[[noreturn]] void throw_bad_input(const std::string& text);
}  // namespace detail

// Throws InvalidArgument unless `condition`: the caller's program is wrong.
template <typename... Arguments>
void check(bool condition, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (!condition) [[unlikely]]
    detail::throw_invalid_argument(fmt::format(format, std::forward<Arguments>(arguments)...));
}

// Throws BadInput unless `condition`: a file, a variable, an option or a peer is wrong.
template <typename... Arguments>
void check_input(bool condition, fmt::format_string<Arguments...> format,
                 Arguments&&... arguments) {
  if (!condition) [[unlikely]]
    detail::throw_bad_input(fmt::format(format, std::forward<Arguments>(arguments)...));
}

}  // namespace lockstep
