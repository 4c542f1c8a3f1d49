#include "comm/rendezvous/meeting_store.h"

#include <lockstep/base/error.h>

#include <chrono>

namespace lockstep::rendezvous {
namespace {

constexpr auto one_part = std::chrono::milliseconds(200);

}  // namespace

void MeetingStore::wait_in_parts(Deadline deadline, const std::function<void(Deadline)>& wait) {
  for (bool may_end = true;;) {
    try {
      return wait(may_end ? deadline.or_sooner(Deadline::after(one_part)) : deadline);
    } catch (const Timeout&) {
      may_end = check_(below());
      if (deadline.passed()) throw;
    }
  }
}

std::string MeetingStore::get(std::string_view key, Deadline deadline) {
  std::string value;
  wait_in_parts(deadline, [&](Deadline part) { value = below().get(key, part); });
  return value;
}

void MeetingStore::wait(std::span<const std::string> keys, Deadline deadline) {
  wait_in_parts(deadline, [&](Deadline part) { below().wait(keys, part); });
}

}  // namespace lockstep::rendezvous
