#include "comm/backend/posted_call.h"

#include "comm/backend/element_type.h"
#include "comm/backend/stream_point.h"

namespace lockstep {
namespace {

// The tensor whose size all ranks agree on; undefined for a barrier.
const at::Tensor& operand(const Call& call) {
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::scatter:
    case Collective::recv:
      return call.output;
    default:
      return call.input;
  }
}

// The caller may give its tensor another storage meanwhile.
at::Tensor detached(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach() : tensor;
}

}  // namespace

CallView view_of(const Call& call) {
  const auto& tensor = operand(call);
  bool has_tensor = tensor.defined();
  return {.collective = call.collective,
          .op = call.op,
          .root = call.root,
          .dtype = has_tensor ? std::optional(dtype_of(tensor.scalar_type())) : std::nullopt,
          .elements = has_tensor ? tensor.numel() : 0,
          .input_counts = call.input_counts,
          .output_counts = call.output_counts,
          .tag = call.tag,
          .where = call.where,
          .number = call.id.number};
}

PostedCall::PostedCall(const Call& call)
    : CallRecord(record_of(view_of(call))),
      input(detached(call.input)),
      output(call.output.is_same(call.input) ? input : detached(call.output)),
      where(call.where),
      after(stream_point(call.input.defined() ? call.input : call.output)),
      id(call.id),
      fingerprint(fingerprint_of(record())) {
  timeout = call.timeout;
}

std::int64_t part_elements(const std::vector<std::int64_t>& counts, std::int64_t all, int size,
                           int part) {
  return counts.empty() ? all / size : counts.at(part);
}

}  // namespace lockstep
