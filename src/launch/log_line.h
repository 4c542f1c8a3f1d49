// A line of the library's log on a rank's standard error.
#pragma once

#include "base/text.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace lockstep::launch {

// "14:03:21.042 [rank 2] error: TEXT"; a rank that is alone has no "[rank 2] ".
struct LogLine {
  std::string_view time;  // "14:03:21.042 "
  std::optional<std::int64_t> rank;
  std::string_view rest;  // "error: TEXT"
};

// Nothing for any other line.
inline std::optional<LogLine> parse_log_line(std::string_view line) {
  constexpr std::string_view form = "00:00:00.000 ";  // '0' stands for a digit
  constexpr std::string_view begin = "[rank ", end = "] ";
  const auto fits = [](char of_form, char found) {
    return of_form == '0' ? found >= '0' && found <= '9' : found == of_form;
  };
  if (line.size() < form.size() || !std::ranges::equal(form, line.substr(0, form.size()), fits))
    return std::nullopt;
  LogLine parsed{.time = line.substr(0, form.size()), .rank = {}, .rest = line.substr(form.size())};
  if (!parsed.rest.starts_with(begin)) return parsed;
  const std::size_t close = parsed.rest.find(end);
  if (close == std::string_view::npos) return std::nullopt;
  parsed.rank = parse_integer(parsed.rest.substr(begin.size(), close - begin.size()));
  if (!parsed.rank) return std::nullopt;
  parsed.rest.remove_prefix(close + end.size());
  return parsed;
}

}  // namespace lockstep::launch
