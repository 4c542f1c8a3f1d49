// How a loader makes batches from a dataset: from the dataset's own batches or from its single
// examples.
//
// A dataset is any class with a size() and one of the functions below, or a shared_ptr to such a
// class:
//
//   get_batch(c10::ArrayRef<std::size_t>)   the datasets of LibTorch and of lockstep::data
//   get(std::size_t)                        one example
//
// Examples are stacked: a std::vector of torch::data::Example<> becomes one Example<> of tensors
// with an additional first dim, a std::vector of TensorExample becomes one TensorExample. Any other
// result of get_batch() is passed on unchanged. The result must depend on the indices only: if a
// dataset draws random numbers, the batches are no longer the same for every number of workers.
#pragma once

#include <lockstep/base/error.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/util/ArrayRef.h>
#include <torch/data/example.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

template <class D>
concept GivesBatches =
    requires(D& dataset, c10::ArrayRef<std::size_t> indices) { dataset.get_batch(indices); };

template <class D>
concept GivesExamples = requires(D& dataset, std::size_t index) { dataset.get(index); };

template <class D>
concept MapDataset = (GivesBatches<D> || GivesExamples<D>)&&requires(const D& dataset) {
  { dataset.size() } -> std::convertible_to<std::optional<std::size_t>>;
};

inline torch::data::Example<> stacked(const std::vector<torch::data::Example<>>& examples) {
  std::vector<at::Tensor> data, target;
  for (const auto& example : examples) {
    data.push_back(example.data);
    target.push_back(example.target);
  }
  return {at::stack(data), at::stack(target)};
}

inline torch::data::TensorExample stacked(const std::vector<torch::data::TensorExample>& examples) {
  std::vector<at::Tensor> data;
  for (const auto& example : examples) data.push_back(example.data);
  return {at::stack(data)};
}

template <class Batch>
Batch stacked(Batch batch) {
  return batch;
}

// Returns the tensors of a batch, for LoaderOptions::pin_memory and device. For a batch of your own
// type, write such a function in the namespace of the type.
inline std::vector<at::Tensor*> tensors_of(at::Tensor& batch) { return {&batch}; }
inline std::vector<at::Tensor*> tensors_of(torch::data::TensorExample& batch) {
  return {&batch.data};
}
inline std::vector<at::Tensor*> tensors_of(torch::data::Example<>& batch) {
  return {&batch.data, &batch.target};
}
inline std::vector<at::Tensor*> tensors_of(std::vector<at::Tensor>& batch) {
  std::vector<at::Tensor*> tensors;
  for (at::Tensor& tensor : batch) tensors.push_back(&tensor);
  return tensors;
}

template <class Batch>
concept HasTensors = requires(Batch& batch) {
  { tensors_of(batch) } -> std::same_as<std::vector<at::Tensor*>>;
};

// Reads one batch of `dataset` and collates it.
template <MapDataset D>
auto read_batch(D& dataset, c10::ArrayRef<std::size_t> indices) {
  if constexpr (GivesBatches<D>) {
    return stacked(dataset.get_batch(indices));
  } else {
    std::vector<decltype(dataset.get(std::size_t{}))> examples;
    examples.reserve(indices.size());
    for (std::size_t index : indices) examples.push_back(dataset.get(index));
    return stacked(std::move(examples));
  }
}

template <MapDataset D>
using BatchOf = decltype(read_batch(std::declval<D&>(), {}));

// The read function of one worker. Workers read from separate datasets, unless the loader was given
// a shared_ptr.
template <class Batch>
using ReadBatch = std::function<Batch(c10::ArrayRef<std::size_t>)>;

template <MapDataset D>
ReadBatch<BatchOf<D>> reader_of(std::shared_ptr<D> dataset) {
  return [dataset = std::move(dataset)](c10::ArrayRef<std::size_t> indices) {
    return read_batch(*dataset, indices);
  };
}

// DeviceCopies: copies batches from host memory to a device ahead of their use, on a stream of
// their own, so that the copies overlap with the work of the current stream.
//
//   DeviceCopies copies(lockstep::device());
//   Arrival arrival = copies.begin(tensors_of(next));   // `next` now refers to device memory
//   ...                                                 // queue the work of this step
//   arrival.wait();                                     // before work that uses `next`
//
// Loaders do this with LoaderOptions::device.

// The tensors of one batch on their way to a device; empty if nothing was copied.
class Arrival {
 public:
  // Makes the calling thread's current stream wait for the copies, without blocking the thread.
  // When the tensors are released, their memory is not reused until that stream has finished its
  // queued work. Call wait() for each stream that uses the tensors.
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
  // absent or the CPU, begin() copies nothing; it only pins the tensors if `pin_memory` is set and
  // the process has an accelerator.
  explicit DeviceCopies(std::optional<c10::Device> device, bool pin_memory = false);

  // Replaces each tensor by its copy; undefined tensors and tensors on the device are not changed.
  // The originals may be changed or released after the call. Does not wait for the device, except
  // for the copy of a tensor in pinned memory that something else holds, too.
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
