#include "base/log.h"
#include "base/visible.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::log {
namespace {

constexpr std::array<std::pair<std::string_view, Level>, 5> level_names{
    {{"debug", Level::debug},
     {"info", Level::info},
     {"warning", Level::warning},
     {"error", Level::error},
     {"off", Level::off}}};

std::optional<Level> level_named(std::string_view name) {
  for (auto [known, level] : level_names) {
    if (known == name) return level;
  }
  return std::nullopt;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

std::string pattern(std::string_view prefix) {
  std::string middle;
  for (char letter : prefix) middle += letter == '%' ? std::string("%%") : std::string(1, letter);
  return "%H:%M:%S.%e " + (middle.empty() ? "" : "[" + middle + "] ") + "%l: %v";
}

// Returns the logger of the process. The logger is never destroyed, because threads may still log
// while the program exits.
spdlog::logger& logger() {
  static spdlog::logger& instance = []() -> spdlog::logger& {
    auto& made = *new spdlog::logger("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern(pattern(""));
    const char* setting = std::getenv("LOCKSTEP_LOG");
    auto level = level_named(setting != nullptr ? setting : "info");
    made.set_level(to_spdlog(level.value_or(Level::info)));
    if (!level)
      made.warn("LOCKSTEP_LOG: expected debug, info, warning, error or off, found '{}'", setting);
    return made;
  }();
  return instance;
}

}  // namespace

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

Level level() {
  for (auto [name, level] : level_names) {
    if (to_spdlog(level) == logger().level()) return level;
  }
  return Level::info;
}

void set_prefix(std::string_view prefix) { logger().set_pattern(pattern(prefix)); }

namespace detail {

bool is_shown(Level level) noexcept { return logger().should_log(to_spdlog(level)); }

void write(Level level, std::string_view pattern,
           std::span<const FormatArgument> arguments) noexcept {
  try {
    logger().log(to_spdlog(level), visible_line(formatted_from(pattern, arguments)));
  } catch (const std::exception&) {
    std::fputs("lockstep: a log line could not be written\n", stderr);
  }
}

}  // namespace detail
}  // namespace lockstep::log
