// Parts that lie in lazy storages (lockstep/dispatch/part.h), and the interceptor that checks
// operations on them.
#pragma once

#include "dispatch/call.h"
#include "dispatch/lazy_storage.h"

#include <lockstep/dispatch/part.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep::dispatch {

// At least one part, in the order of their offsets, each with a shard group. Part::tensor is
// undefined here, because it would keep the storage alive.
using PartList = std::shared_ptr<const std::vector<Part>>;

// Returns the record of a storage that begins at offset `first` of the list.
[[nodiscard]] std::shared_ptr<const StorageRecord> record_of(PartList parts,
                                                             std::int64_t first = 0);

// Returns the list of the storage of `tensor`; null if it has none.
[[nodiscard]] PartList parts_beside(const at::Tensor& tensor);

// Returns true if both are parts in one list, and `tensor` begins where `before` ends.
[[nodiscard]] bool follows(const at::Tensor& tensor, const at::Tensor& before);

// Returns `values`, with their memory, as the part at `offset` of the list. `key` is
// dispatch::key(). `owner`: of the part's storage, notified of each use; the memory stays.
[[nodiscard]] at::Tensor as_part(const at::Tensor& values, PartList parts, std::int64_t offset,
                                 c10::DispatchKey key, std::weak_ptr<StorageOwner> owner = {});

// Returns `values`, which have the same elements as `part`, with the record of `part`; returns
// `values` unchanged if `part` is not a part.
[[nodiscard]] at::Tensor as_part_like(const at::Tensor& values, const at::Tensor& part,
                                      std::weak_ptr<StorageOwner> owner = {});

// The interceptor for parts (lockstep/dispatch/part.h). Throws InvalidArgument if an argument is a
// part of a whole that several ranks share and the operation mixes elements. New results become
// parts like the arguments.
void check_parts(Call& call);

}  // namespace lockstep::dispatch
