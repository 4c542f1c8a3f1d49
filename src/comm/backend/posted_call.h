// A Call that outlives post(): a record of it, and its tensors.
#pragma once

#include <lockstep/comm/backend.h>

#include "comm/call/record.h"

#include <cstdint>
#include <memory>
#include <source_location>
#include <vector>

namespace lockstep {

class StreamPoint;

struct PostedCall : CallRecord {
  PostedCall() = default;
  explicit PostedCall(const Call& call);

  // Without the tensors, which are not kept alive by it.
  [[nodiscard]] const CallRecord& record() const { return *this; }

  at::Tensor input;
  at::Tensor output;
  std::source_location where;
  // Where the posting thread's work on the tensors' device was; null for the host's memory.
  std::shared_ptr<const StreamPoint> after;
  CallId id;
  std::uint64_t fingerprint = 0;  // of the record
};

// The elements of part `part` of an even or uneven operand.
[[nodiscard]] std::int64_t part_elements(const std::vector<std::int64_t>& counts, std::int64_t all,
                                         int size, int part);

}  // namespace lockstep
