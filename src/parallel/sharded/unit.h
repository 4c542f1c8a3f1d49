// Unit: parameters that are unsharded and resharded together, in one flat storage of which this
// rank owns a shard.
//
//   absent --unshard()--> arriving --wait_for_unshard()--> present --reshard()--> absent
//
// The module's parameters are tensors in a lazy storage, in the dtype of the computation; the
// shard holds the values, in the parameters' own dtype. UnitStorage decides where both lie.
//
// Not thread-safe: Unsharder holds its mutex.
#pragma once

#include "comm/backend/accelerator.h"
#include "dispatch/lazy_storage.h"
#include "dispatch/part.h"
#include "layout/flat_layout.h"
#include "parallel/handle_state.h"
#include "parallel/sharded/unit_storage.h"

#include <lockstep/comm/group.h>
#include <lockstep/dispatch/part.h>
#include <lockstep/mesh/ranks.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::sharded {

// The groups of a handle of fully_shard(). Each carries one kind of calls: all ranks post the calls
// of a kind in the same order, while the kinds may interleave differently. The handle owns them;
// its parts and slices refer to them.
struct Groups {
  Group whole;     // all ranks: status, buffers, checks
  Group gather;    // values of units
  Group reduce;    // gradients of units
  Group replicas;  // ranks with the same shard
};

// Collective. The last axis of a mesh shards; the ranks along its other axes are replicas.
[[nodiscard]] Groups groups_on(const Ranks& ranks);

struct UnitSettings {
  ShardOptions options;  // options_of() the unit
  c10::DispatchKey key = c10::DispatchKey::Undefined;
  std::shared_ptr<Offload> offload;  // null: shards are where the parameters are
  std::shared_ptr<parallel::WaitTime> waits = std::make_shared<parallel::WaitTime>();
  std::shared_ptr<ShardGroup> shard_group;  // the ranks with the other shards
};

// The place of a parameter in the units of a handle.
struct UnitEntry {
  int unit = 0;
  int number = 0;  // in the unit
};

class Unit {
 public:
  // Local; collective with node-shared storage. Takes this rank's shard of the parameters' values,
  // and turns the parameters into released tensors. The parameters must have one dtype and device,
  // and occur once each. The handle keeps the group alive. `whole` and `slices`: the owners of the
  // two storages, which operations call before they use the parameters or the slices.
  Unit(std::string name, std::vector<NamedParameter> parameters, Group& group,
       std::shared_ptr<BufferPool> pool, std::weak_ptr<dispatch::StorageOwner> whole,
       std::weak_ptr<dispatch::StorageOwner> slices, const UnitSettings& settings);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const layout::FlatLayout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const { return parameters_; }
  [[nodiscard]] const UnitSettings& settings() const { return settings_; }
  [[nodiscard]] bool trains() const { return trains_; }
  // The dtypes of the shard and of the computation.
  [[nodiscard]] c10::ScalarType dtype() const { return dtype_; }
  [[nodiscard]] c10::ScalarType compute_dtype() const { return compute_dtype_; }
  // The device that operations use. The shard is on the same device unless it is offloaded.
  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] c10::Device shard_device() const { return memory_->shard_device(); }

  // The optimizer's view: one slice per parameter. Slices are leaves; they require a gradient if
  // the unit trains.
  [[nodiscard]] const std::vector<at::Tensor>& slices() const { return slices_; }
  [[nodiscard]] const std::vector<layout::FlatSlice>& owned() const { return owned_; }
  // Describes slices and their gradients as parts, one per parameter. Offsets count from the begin
  // of the range.
  [[nodiscard]] const dispatch::PartList& parts() const { return parts_; }
  // Returns this rank's part of parameter i, without a tensor.
  [[nodiscard]] const Part& part_of(int i) const { return (*parts_)[static_cast<std::size_t>(i)]; }
  // This rank's range of the flat storage.
  [[nodiscard]] layout::Range range() const { return range_; }
  // The strides of parameter i in the storage.
  [[nodiscard]] at::IntArrayRef strides(int i) const {
    return strides_[static_cast<std::size_t>(i)];
  }

  [[nodiscard]] bool present() const { return phase_ == Phase::present; }
  [[nodiscard]] bool arriving() const { return phase_ == Phase::arriving; }
  // Returns true if slices have been written since the gather was posted, for example by an
  // optimizer.
  [[nodiscard]] bool outdated() const { return slice_writes_ != unsharded_writes_; }

  // Call before and after each operation that writes to a slice. Thread-safe.
  void slice_written() { ++slice_writes_; }

  // Returns true if peers read this rank's shard in place.
  [[nodiscard]] bool is_read_by_peers() const { return memory_->is_read_by_peers(); }

  // A hint that the shard will be gathered soon.
  void fetch_ahead() const { memory_->fetch_ahead(); }
  // Collective; does not wait for peers. `tag`: replaces the unit's own tag.
  void unshard(std::string_view tag = {});
  // Returns the gather of a unit that is arriving.
  [[nodiscard]] Work gather() const { return gather_; }
  // Blocks until the values have arrived.
  void wait_for_unshard();
  // Call before an operation uses the parameters of a present unit, on any stream.
  void use() { uses_.add(); }
  // Call before the shard is written by other code than the unit's.
  void before_shard_write() { memory_->wait_for_reads(); }
  // Local: frees the whole parameters, for work of the current stream.
  void reshard();
  // Call before the parameters of a present unit are written. If peers read the shard, the call is
  // collective and blocks, and this rank has its own copy of the whole until reshard(). When the
  // call returns, every rank has begun to make its copy.
  void begin_write();
  // Collective: completes when every rank has posted the gather.
  [[nodiscard]] Work post_barrier(std::string_view tag);
  // Call after the whole was written in place: copies this rank's part of it into the shard.
  void write_back();
  // Returns a fingerprint of the whole's bits. The unit must be present.
  [[nodiscard]] std::int64_t fingerprint() const;

  // Returns the name of the parameter at an element of the storage.
  [[nodiscard]] const std::string& parameter_at(std::int64_t offset) const;
  // Returns the first parameter that is no longer in the storage; null if all are in it.
  [[nodiscard]] const std::string* first_stranger() const;

  // Collective and blocking. Returns the values of every parameter, in its own dtype, as ordinary
  // tensors.
  [[nodiscard]] std::vector<at::Tensor> whole_values();
  // Local. Returns the shard, or parameter i's part of it, as an ordinary tensor in the same
  // memory. Call parts_written() after writing to it: gathered values are then outdated.
  [[nodiscard]] const at::Tensor& shard() const { return memory_->shard(); }
  [[nodiscard]] at::Tensor part(int i) const;
  void parts_written();
  // Collective. Turns the parameters into ordinary tensors.
  void hand_back();
  // Local. From then on, using a released parameter throws an error with `text`.
  void abandon(std::string text);

  // Return the bytes of the shard, unless it is a range of a permanent whole; and the bytes of that
  // whole.
  [[nodiscard]] std::int64_t shard_bytes() const { return memory_->shard_bytes(); }
  [[nodiscard]] std::int64_t whole_bytes() const { return memory_->whole_bytes(); }

  int pins = 0;  // operations that use it now

 private:
  enum class Phase { absent, arriving, present };

  [[nodiscard]] CallOptions call() const {
    return {.tag = tag_, .timeout = settings_.options.timeout};
  }
  [[nodiscard]] layout::FlatLayout make_layout() const;
  // `before`: the part that the parameter was before this unit sharded it; null: it was whole.
  [[nodiscard]] Part part_of(const layout::FlatSlice& slice, const Part* before) const;
  [[nodiscard]] dispatch::PartList list_parts() const;
  void take_parameters();
  void make_slices(std::weak_ptr<dispatch::StorageOwner> owner);
  void share_versions() const;

  std::string name_;
  std::string tag_;
  std::vector<NamedParameter> parameters_;
  UnitSettings settings_;
  Group& group_;
  bool trains_ = false;
  c10::ScalarType dtype_;
  c10::ScalarType compute_dtype_;
  c10::Device device_;
  layout::FlatLayout layout_;
  layout::Range range_;
  std::vector<layout::FlatSlice> owned_;
  std::vector<std::vector<std::int64_t>> strides_;
  dispatch::LazyStorage storage_;
  std::unique_ptr<UnitStorage> memory_;
  std::atomic<std::int64_t> slice_writes_ = 0;
  dispatch::PartList parts_;
  std::vector<at::Tensor> slices_;
  Phase phase_ = Phase::absent;
  Work gather_;
  at::Tensor arriving_;  // the whole, while it is arriving
  StreamUses uses_;      // of the whole, while it is present
  std::int64_t unsharded_writes_ = 0;
};

}  // namespace lockstep::sharded
