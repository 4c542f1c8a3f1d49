// PartRecord: the parts that lie in a lazy storage; and the interceptor that knows them.
#pragma once

#include "dispatch/call.h"
#include "dispatch/lazy_storage.h"

#include <lockstep/dispatch/part.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace lockstep::dispatch {

class PartRecord final : public StorageRecord {
 public:
  // The storage's first element is the one at offset `first` of `parts`.
  explicit PartRecord(std::shared_ptr<const Parts> parts, std::int64_t first = 0)
      : parts(std::move(parts)), first(first) {}

  const std::shared_ptr<const Parts> parts;
  const std::int64_t first;
};

[[nodiscard]] inline std::shared_ptr<const PartRecord> record_of_parts(
    std::shared_ptr<const Parts> parts) {
  return std::make_shared<const PartRecord>(std::move(parts));
}

// Null when the storage of `tensor` has none.
[[nodiscard]] const PartRecord* part_record_of(const c10::TensorImpl& tensor);

// `values`, whose memory is kept, as a part: that at `offset` of `parts`. `key` is dispatch::key().
[[nodiscard]] at::Tensor as_part(const at::Tensor& values, std::shared_ptr<const Parts> parts,
                                 std::int64_t offset, c10::DispatchKey key);

// The same for values of the elements that `part` has; `values` themselves where it is no part.
[[nodiscard]] at::Tensor as_part_like(const at::Tensor& values, const at::Tensor& part);

// The interceptor for parts (lockstep/dispatch/part.h). InvalidArgument for a part among the
// arguments, which has several ranks, and an operation that mixes elements. Results that are new
// become parts, as the arguments were.
void check_parts(Call& call);

}  // namespace lockstep::dispatch
