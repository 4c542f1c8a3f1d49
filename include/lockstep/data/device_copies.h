// DeviceCopies: copies batches from host memory to a device ahead of their use, on a stream of
// their own, so that the copies overlap with the work of the current stream.
//
//   DeviceCopies copies(lockstep::device());
//   Arrival arrival = copies.begin(tensors_of(next));   // `next` now refers to device memory
//   ...                                                 // queue the work of this step
//   arrival.wait();                                     // before work that uses `next`
//
// Loaders do this with LoaderOptions::device.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/data/batches.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

// The tensors of one batch on their way to a device; empty if nothing was copied.
class Arrival {
 public:
  // Orders work that the calling thread queues on its current stream from now on after the copies,
  // without blocking the thread. The tensors' memory is not reused before that stream has done the
  // work that it has when they are released. Call it in each thread, and for each stream, that uses
  // the tensors.
  void wait() const;

 private:
  friend class DeviceCopies;

  std::vector<at::Tensor> tensors_;
  std::shared_ptr<const c10::Event> copied_;  // null: nothing to wait for
};

// Thread-safe.
class DeviceCopies {
 public:
  // Copies to `device`, through pinned host memory if the device has such memory. If `device` is
  // absent or the CPU, begin() only pins: with `pin_memory`, and in a process that has an
  // accelerator.
  explicit DeviceCopies(std::optional<c10::Device> device, bool pin_memory = false);

  // Replaces each tensor by its copy; undefined tensors, and tensors that are there already, stay.
  // Does not block for the device. The originals may be changed or released after the call.
  [[nodiscard]] Arrival begin(std::span<at::Tensor* const> tensors) const;

  // Returns true if begin() does nothing.
  [[nodiscard]] bool are_none() const { return !stream_ && !pins_; }

 private:
  void pin(at::Tensor& tensor) const;

  std::optional<c10::Stream> stream_;  // absent: the tensors stay in host memory
  bool pins_ = false;
};

// A batch of a loader, and its copy to the device.
template <class Batch>
struct SentBatch {
  SentBatch(Batch made, const DeviceCopies& copies) : batch(std::move(made)) {
    if (copies.are_none()) return;
    if constexpr (HasTensors<Batch>)
      arrival = copies.begin(tensors_of(batch));
    else
      throw InvalidArgument(
          "loader: pin_memory and device need the tensors of a batch: write "
          "std::vector<at::Tensor*> tensors_of(Batch&) in the namespace of its type");
  }

  // Returns the batch of a SentBatch<Batch>, which the current stream may use from now on.
  [[nodiscard]] static std::shared_ptr<void> arrived(const std::shared_ptr<void>& item) {
    if (!item) return nullptr;
    auto& sent = *static_cast<SentBatch*>(item.get());
    sent.arrival.wait();
    return {item, &sent.batch};
  }

  Batch batch;
  Arrival arrival;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
