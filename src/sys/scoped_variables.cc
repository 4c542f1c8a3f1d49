#include "sys/scoped_variables.h"

#include <cstdlib>

namespace lockstep::sys {
namespace {

std::mutex& one_at_a_time() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

ScopedVariables::ScopedVariables(std::span<const std::pair<const char*, const char*>> values)
    : alone_(one_at_a_time()) {
  for (const auto& [name, value] : values) {
    const char* before = std::getenv(name);
    before_.emplace_back(name,
                         before != nullptr ? std::optional<std::string>(before) : std::nullopt);
    ::setenv(name, value, 1);
  }
}

ScopedVariables::~ScopedVariables() {
  for (const auto& [name, value] : before_) {
    if (value)
      ::setenv(name.c_str(), value->c_str(), 1);
    else
      ::unsetenv(name.c_str());
  }
}

}  // namespace lockstep::sys
