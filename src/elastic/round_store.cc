#include "elastic/round_store.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <chrono>

namespace lockstep {
namespace {

constexpr auto one_part = std::chrono::milliseconds(100);

}  // namespace

void RoundStore::wait_in_parts(Deadline deadline, const std::function<void(Deadline)>& wait) {
  for (;;) {
    try {
      return wait(deadline.or_sooner(Deadline::after(one_part)));
    } catch (const Timeout&) {
      if (const std::optional<std::string> end = ended_())
        throw PeerLost(formatted("round {} has ended: {}", round_, *end));
      if (deadline.passed()) throw;
    }
  }
}

std::string RoundStore::get(std::string_view key, Deadline deadline) {
  std::string value;
  wait_in_parts(deadline, [&](Deadline part) { value = below().get(key, part); });
  return value;
}

void RoundStore::wait(std::span<const std::string> keys, Deadline deadline) {
  wait_in_parts(deadline, [&](Deadline part) { below().wait(keys, part); });
}

}  // namespace lockstep
