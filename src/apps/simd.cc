#include "apps/simd.h"

#include <hwy/targets.h>

#include <bit>

namespace lockstep::apps {

namespace {

// In Highway's masks, a lower bit is a wider instruction set.
std::vector<std::string> names_of(std::uint64_t targets) {
  std::vector<std::string> names;
  for (; targets != 0; targets &= targets - 1) {
    const auto target = static_cast<std::int64_t>(std::uint64_t{1} << std::countr_zero(targets));
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

}  // namespace

std::vector<std::string> compiled_simd() {
  return names_of(static_cast<std::uint64_t>(HWY_TARGETS));
}

std::vector<std::string> machine_simd() {
  return names_of(static_cast<std::uint64_t>(hwy::SupportedTargets()) &
                  static_cast<std::uint64_t>(HWY_ATTAINABLE_TARGETS));
}

}  // namespace lockstep::apps
