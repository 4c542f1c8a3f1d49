#include "comm/backend/posted_call.h"

#include "comm/backend/stream_point.h"

namespace lockstep {
namespace {

// The caller may give its tensor another storage meanwhile.
at::Tensor detached(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach() : tensor;
}

}  // namespace

PostedCall::PostedCall(const Call& call)
    : CallRecord(record_of(call)),
      input(detached(call.input)),
      output(call.output.is_same(call.input) ? input : detached(call.output)),
      where(call.where),
      after(stream_point(call.input.defined() ? call.input : call.output)),
      id(call.id),
      fingerprint(fingerprint_of(record())) {}

std::int64_t part_elements(const std::vector<std::int64_t>& counts, std::int64_t all, int size,
                           int part) {
  return counts.empty() ? all / size : counts.at(part);
}

}  // namespace lockstep
