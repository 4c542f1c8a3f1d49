// Lines for people, on standard error: "14:03:21.042 [rank 2] warning: text".
//
//   log::info("{} of {} ranks have arrived", arrived, size);
//
// LOCKSTEP_LOG=debug|info|warning|error|off sets the least level that is shown (info when unset).
// Any thread may log; a line is written whole. Logging never throws: a value of LOCKSTEP_LOG that
// means nothing is itself logged once.
#pragma once

#include <fmt/core.h>

#include <string_view>

namespace lockstep::log {

enum class Level { debug, info, warning, error, off };

// Replaces what LOCKSTEP_LOG says.
void set_level(Level level);
[[nodiscard]] Level level();

// Goes before every later line of this process as "[prefix]", such as "rank 2"; empty for none.
void set_prefix(std::string_view prefix);

namespace detail {
[[nodiscard]] bool is_shown(Level level) noexcept;
void write(Level level, std::string_view text) noexcept;

// In the header, so that no type of fmt crosses into the library: LibTorch brings a copy of fmt of
// another version.
inline void write(Level level, fmt::string_view format, fmt::format_args arguments) noexcept {
  if (!is_shown(level)) return;
  try {
    write(level, std::string_view(fmt::vformat(format, arguments)));
  } catch (...) {
    write(level, std::string_view("a log line could not be written"));
  }
}
}  // namespace detail

template <typename... Arguments>
void debug(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  detail::write(Level::debug, format, fmt::make_format_args(arguments...));
}

template <typename... Arguments>
void info(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  detail::write(Level::info, format, fmt::make_format_args(arguments...));
}

template <typename... Arguments>
void warning(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  detail::write(Level::warning, format, fmt::make_format_args(arguments...));
}

template <typename... Arguments>
void error(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  detail::write(Level::error, format, fmt::make_format_args(arguments...));
}

}  // namespace lockstep::log
