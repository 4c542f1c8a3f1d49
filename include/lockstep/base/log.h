// Lines for people, on standard error: "14:03:21.042 [rank 2] warning: text".
//
//   log::info("{} of {} ranks have arrived", arrived, size);
//
// LOCKSTEP_LOG=debug|info|warning|error|off sets the least level that is shown (info when unset).
// Any thread may log; a line is written whole. Logging never throws: a value of LOCKSTEP_LOG that
// means nothing is itself logged once.
#pragma once

#include <lockstep/base/format.h>

#include <initializer_list>
#include <span>
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
