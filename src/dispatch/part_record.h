// PartRecord: the parts that lie in a lazy storage; and the interceptor that checks operations on
// them.
#pragma once

#include "dispatch/call.h"
#include "dispatch/lazy_storage.h"

#include <lockstep/dispatch/part.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::dispatch {

class PartRecord final : public StorageRecord {
 public:
  // A part has no tensor here: it would keep the storage alive.
  struct Placed {
    Part part;
    std::int64_t offset = 0;  // of its first element, in elements
  };
  using List = std::shared_ptr<const std::vector<Placed>>;

  // The first element of the storage is the one at offset `first`. `parts`, at least one, are in
  // the order of their offsets, and each has a shard group.
  explicit PartRecord(List parts, std::int64_t first = 0) : parts(std::move(parts)), first(first) {}

  // Returns the part that `tensor`, which lies in the storage, is or is a view of.
  [[nodiscard]] const Part& part_at(const c10::TensorImpl& tensor) const;

  const List parts;
  const std::int64_t first;
};

// Returns null if the storage of `tensor` has no record.
[[nodiscard]] const PartRecord* part_record_of(const c10::TensorImpl& tensor);

// True if both are parts in one list, and `tensor` begins where `before` ends.
[[nodiscard]] bool follows(const at::Tensor& tensor, const at::Tensor& before);

// Returns `values`, with their memory, as the part at `offset` of the list. `key` is
// dispatch::key().
[[nodiscard]] at::Tensor as_part(const at::Tensor& values, PartRecord::List parts,
                                 std::int64_t offset, c10::DispatchKey key);

// Returns `values`, which are the elements of `part`, as that part; `values` if `part` is none.
[[nodiscard]] at::Tensor as_part_like(const at::Tensor& values, const at::Tensor& part);

// The interceptor for parts (lockstep/dispatch/part.h). Throws InvalidArgument if an argument is a
// part that has several ranks and the operation mixes elements. New results become parts, as the
// arguments were.
void check_parts(Call& call);

}  // namespace lockstep::dispatch
