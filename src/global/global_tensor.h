// What stands behind a global tensor on this rank.
#pragma once

#include "dispatch/carrier.h"
#include "global/space.h"
#include "global/spec.h"

#include <lockstep/mesh/mesh.h>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

namespace lockstep::global {

class GlobalTensor final : public dispatch::Carrier {
 public:
  GlobalTensor(at::Tensor local, SpecPtr spec, Mesh mesh)
      : local(std::move(local)), spec(std::move(spec)), mesh(std::move(mesh)) {}

  void run(dispatch::Call& call) override;
  [[nodiscard]] const at::Tensor& memory() const override { return local; }
  [[nodiscard]] at::Tensor in_memory(at::Tensor memory) const override;
  [[nodiscard]] std::function<at::Tensor(at::Tensor memory)> maker() override;

  const at::Tensor local;
  const SpecPtr spec;
  const Mesh mesh;  // keeps the space of `spec`

  // A Partial tensor that an operation needed otherwise: reduced once, not by each such operation.
  // Of one that is computed again in backward (maker()), the tensor itself has it from there.
  struct Reduced {
    std::mutex mutex;  // guards what follows
    PlacementList placements;
    at::Tensor local;          // undefined: not reduced yet
    std::uint64_t writes = 0;  // count_writes(), when it was reduced
  };
  [[nodiscard]] std::shared_ptr<Reduced> reduced();

  // The tensor whose memory it lies in: itself, or that of which it is a view.
  [[nodiscard]] GlobalTensor& owner() { return base_ ? *base_ : *this; }
  void set_base(GlobalTensor& base);

  // It is a view of `base` that had to be redistributed to be made: neither sees what is written to
  // the other. Views of it are such copies too.
  void set_copy_of(GlobalTensor& base);
  [[nodiscard]] bool is_copy() const { return is_copy_; }
  // Whether the tensor that it is a copy of has been written since.
  [[nodiscard]] bool is_stale() { return is_copy_ && owner().differs_from_source(); }

  // Plain tensors lie in its memory too: writes to them count by the version of `local`.
  void share_with_plain();
  [[nodiscard]] bool is_shared() { return owner().is_shared_.load(std::memory_order_relaxed); }
  // Changes with every write to its memory that LibTorch can know of.
  [[nodiscard]] std::uint64_t count_writes();
  // Before its memory is written.
  void begin_write();

 private:
  [[nodiscard]] bool differs_from_source();
  void forget_reduced();

  std::mutex mutex_;
  std::shared_ptr<Reduced> reduced_;  // guarded by it; null: none

  c10::intrusive_ptr<GlobalTensor> base_;
  bool is_copy_ = false;
  // Of the owner of the memory.
  std::atomic<std::uint64_t> writes_{0};
  std::atomic<bool> is_shared_{false};
  c10::intrusive_ptr<GlobalTensor> source_;  // that it is a copy of
  std::uint64_t writes_of_source_ = 0;       // when it was copied
};

// Null for a plain tensor.
[[nodiscard]] GlobalTensor* global_of(const at::Tensor& tensor);
// InvalidArgument for a plain tensor: `what` begins the message.
[[nodiscard]] GlobalTensor& expect_global(const at::Tensor& tensor, const char* what);

// InvalidArgument when what it is a copy of has been written since.
void check_is_fresh(GlobalTensor& tensor, std::string_view operation);

// A new global tensor. `local` has the sizes that `spec` says for this rank, and its dtype.
[[nodiscard]] at::Tensor wrap(at::Tensor local, const SpecPtr& spec, const Mesh& mesh);

// `tensor`'s values, which are global, in other placements: to read only, since the memory may be
// the tensor's own. Collective where a conversion is.
[[nodiscard]] at::Tensor values_in(const at::Tensor& tensor, std::span<const Placement> placements);

}  // namespace lockstep::global
