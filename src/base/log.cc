#include "base/log.h"
#include "base/escaped.h"
#include "base/never_destroyed.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

namespace lockstep::log {
namespace {

struct NamedLevel {
  std::string_view name;
  Level level;
  spdlog::level::level_enum spdlog;
};
constexpr std::array<NamedLevel, 5> levels{{{"debug", Level::debug, spdlog::level::debug},
                                            {"info", Level::info, spdlog::level::info},
                                            {"warning", Level::warning, spdlog::level::warn},
                                            {"error", Level::error, spdlog::level::err},
                                            {"off", Level::off, spdlog::level::off}}};

spdlog::level::level_enum to_spdlog(Level level) {
  return std::ranges::find(levels, level, &NamedLevel::level)->spdlog;
}

std::string pattern(std::string_view prefix) {
  std::string middle;
  for (char letter : prefix) middle += letter == '%' ? std::string("%%") : std::string(1, letter);
  return "%H:%M:%S.%e " + (middle.empty() ? "" : "[" + middle + "] ") + "%l: %v";
}

spdlog::logger make_logger() {
  spdlog::logger made("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  made.set_pattern(pattern(""));
  const char* setting = std::getenv("LOCKSTEP_LOG");
  const bool is_set = setting != nullptr && *setting != '\0';
  const std::string_view name = is_set ? setting : "info";
  const auto* named = std::ranges::find(levels, name, &NamedLevel::name);
  made.set_level(named != levels.end() ? named->spdlog : spdlog::level::info);
  if (named == levels.end())
    made.warn("LOCKSTEP_LOG: expected debug, info, warning, error or off, found '{}'", setting);
  return made;
}

// Returns the logger of the process.
spdlog::logger& logger() {
  static NeverDestroyed made(make_logger());
  return *made;
}

}  // namespace

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

Level level() {
  const auto* named = std::ranges::find(levels, logger().level(), &NamedLevel::spdlog);
  return named != levels.end() ? named->level : Level::info;
}

void set_prefix(std::string_view prefix) { logger().set_pattern(pattern(prefix)); }

namespace detail {

bool is_shown(Level level) noexcept { return logger().should_log(to_spdlog(level)); }

void write(Level level, std::string_view pattern,
           std::span<const FormatArgument> arguments) noexcept {
  try {
    logger().log(to_spdlog(level), escaped_line(formatted_from(pattern, arguments)));
  } catch (const std::exception&) {
    std::fputs("lockstep: a log line could not be written\n", stderr);
  }
}

}  // namespace detail
}  // namespace lockstep::log
