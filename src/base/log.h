// The library's logging functions.
//
//   log::info("{} of {} ranks have arrived", arrived, size);
//
// Any thread may log; lines are never interleaved. Logging never throws.
#pragma once

#include "base/format.h"

#include <lockstep/base/log.h>

#include <initializer_list>
#include <span>
#include <string_view>

namespace lockstep::log {

namespace detail {
[[nodiscard]] bool is_shown(Level level) noexcept;
void write(Level level, std::string_view pattern,
           std::span<const FormatArgument> arguments) noexcept;

template <typename... Arguments>
void write_all(Level level, std::string_view pattern, const Arguments&... arguments) noexcept {
  if (!is_shown(level)) return;
  std::initializer_list<FormatArgument> list{FormatArgument(arguments)...};
  write(level, pattern, {list.begin(), list.size()});
}
}  // namespace detail

template <typename... Arguments>
void debug(FormatPattern<sizeof...(Arguments)> pattern, const Arguments&... arguments) {
  detail::write_all(Level::debug, pattern.text(), arguments...);
}

template <typename... Arguments>
void info(FormatPattern<sizeof...(Arguments)> pattern, const Arguments&... arguments) {
  detail::write_all(Level::info, pattern.text(), arguments...);
}

template <typename... Arguments>
void warning(FormatPattern<sizeof...(Arguments)> pattern, const Arguments&... arguments) {
  detail::write_all(Level::warning, pattern.text(), arguments...);
}

template <typename... Arguments>
void error(FormatPattern<sizeof...(Arguments)> pattern, const Arguments&... arguments) {
  detail::write_all(Level::error, pattern.text(), arguments...);
}

}  // namespace lockstep::log
