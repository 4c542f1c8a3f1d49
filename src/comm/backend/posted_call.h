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
struct Launched;

struct PostedCall : CallRecord {
  PostedCall() = default;
  explicit PostedCall(const Call& call);

  // Returns the call without its tensors; the result does not keep the tensors alive.
  [[nodiscard]] const CallRecord& record() const { return *this; }

  at::Tensor input;
  at::Tensor output;
  std::source_location where;
  // The point in the posting thread's stream at the post; null for tensors in host memory.
  std::shared_ptr<const StreamPoint> after;
  CallId id;
  std::uint64_t fingerprint = 0;  // of the record
  // While a device's call is being launched: where its operations are noted instead of waited for.
  Launched* launched = nullptr;
};

// The elements of part `part` of an even or uneven operand.
[[nodiscard]] std::int64_t part_elements(const std::vector<std::int64_t>& counts, std::int64_t all,
                                         int size, int part);

}  // namespace lockstep
