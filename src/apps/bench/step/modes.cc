#include "apps/bench/step/modes.h"

#include <lockstep/base/check.h>

#include <algorithm>
#include <array>
#include <utility>

namespace lockstep::apps {
namespace {

constexpr std::array<std::string_view, 6> our_mode_names{"none",      "ddp",  "optimizer",
                                                         "gradients", "full", "full-node-shared"};
constexpr std::array<std::string_view, 4> pytorch_mode_names{"none", "ddp", "zero1", "fsdp2"};
constexpr std::array<std::string_view, 6> counterparts{"none",  "ddp",   "zero1",
                                                       "zero1", "fsdp2", "fsdp2"};

}  // namespace

std::span<const std::string_view> our_modes() { return our_mode_names; }
std::span<const std::string_view> pytorch_modes() { return pytorch_mode_names; }

std::string counterpart_of(std::string_view our_mode) {
  auto found = std::ranges::find(our_mode_names, our_mode);
  check(found != our_mode_names.end(), "bench step: there is no mode {}", our_mode);
  return std::string(counterparts[static_cast<std::size_t>(found - our_mode_names.begin())]);
}

std::vector<std::string> counterparts_of(std::span<const std::string> modes) {
  std::vector<std::string> found;
  for (const std::string& mode : modes)
    if (std::string theirs = counterpart_of(mode); std::ranges::find(found, theirs) == found.end())
      found.push_back(std::move(theirs));
  return found;
}

}  // namespace lockstep::apps
