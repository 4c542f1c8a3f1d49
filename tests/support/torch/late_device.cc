#include "support/torch/late_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace lockstep::test {
namespace {

constexpr auto type = c10::DeviceType::PrivateUse1;

// The tasks that were given to streams and have not run yet.
class Streams {
 public:
  struct Place {
    c10::StreamId stream = 0;
    std::uint64_t number = 0;  // number of the last task before this position
  };

  void give(c10::StreamId stream, std::function<void()> task) {
    std::lock_guard lock(mutex_);
    auto& queue = queues_[stream];
    queue.tasks.push_back(std::move(task));
    ++queue.given;
  }
  [[nodiscard]] Place here(c10::StreamId stream) {
    std::lock_guard lock(mutex_);
    return {stream, queues_[stream].given};
  }
  [[nodiscard]] bool is_done(Place place) {
    std::lock_guard lock(mutex_);
    return queues_[place.stream].done >= place.number;
  }
  void run_until(Place place) {
    std::lock_guard lock(mutex_);
    auto& queue = queues_[place.stream];
    while (queue.done < place.number) {
      auto task = std::move(queue.tasks.front());
      queue.tasks.pop_front();
      ++queue.done;
      task();
    }
  }
  [[nodiscard]] c10::StreamId make() {
    std::lock_guard lock(mutex_);
    return ++last_;
  }

 private:
  struct Queue {
    std::deque<std::function<void()>> tasks;
    std::uint64_t given = 0;
    std::uint64_t done = 0;
  };
  std::recursive_mutex mutex_;  // recursive, because a task may wait for another stream
  std::map<c10::StreamId, Queue> queues_;
  c10::StreamId last_ = 0;
};

Streams& streams() {
  static Streams all;
  return all;
}

c10::StreamId& current() {
  thread_local c10::StreamId stream = 0;
  return stream;
}

std::atomic<int>& device_count() {
  static std::atomic<int> count{0};
  return count;
}

c10::DeviceIndex& current_index() {
  thread_local c10::DeviceIndex index = 0;
  return index;
}

c10::Stream stream_of(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(type, 0), id);
}

class LateAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* memory = std::calloc(bytes + 1, 1);
    return {memory, memory, &std::free, c10::Device(type, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

LateAllocator& allocator() {
  static LateAllocator one;
  return one;
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

// Copies as CUDA does: on the current stream, and blocking only if one side is on the host and the
// caller asks for it. Both sides are dense: backends copy no other tensors.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  TORCH_CHECK(from.is_contiguous() && to.is_contiguous() && from.dtype() == to.dtype(),
              "the late device copies dense tensors of one dtype");
  streams().give(current(), [from = from.detach(), to = to.detach()] {
    if (from.nbytes() > 0) std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
  });
  const bool stays_there = !from.is_cpu() && !to.is_cpu();
  if (!stays_there && !non_blocking) streams().run_until(streams().here(current()));
  return to;
}

at::Tensor& zero(at::Tensor& self) {
  TORCH_CHECK(self.is_contiguous(), "the late device fills dense tensors");
  streams().give(current(),
                 [tensor = self.detach()] { std::memset(tensor.data_ptr(), 0, tensor.nbytes()); });
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, std::int64_t offset,
                        c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  c10::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  tensor.set_storage_keep_dtype(std::move(storage));
  tensor.set_storage_offset(offset);
  tensor.set_sizes_and_strides(sizes, strides);
  return self;
}

bool has_same_kind(const at::Tensor& one, const at::Tensor& other) {
  return one.device() == other.device();
}

// Reports no device before count_late_devices(): autograd would start a thread per device, and then
// no rank could be forked. All devices share the memory and streams of one.
struct LateGuard final : c10::impl::DeviceGuardImplInterface {
  using Place = Streams::Place;
  LateGuard() = default;

  [[nodiscard]] c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  [[nodiscard]] c10::Device exchangeDevice(c10::Device device) const override {
    return {device.type(), std::exchange(current_index(), device.index())};
  }
  [[nodiscard]] c10::Device getDevice() const override {
    return {c10::DeviceType::PrivateUse1, current_index()};
  }
  void setDevice(c10::Device device) const override { current_index() = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_index() = device.index();
  }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  [[nodiscard]] c10::Stream getStream(c10::Device) const override { return stream_of(current()); }
  [[nodiscard]] c10::Stream getNewStream(c10::Device, int) const override {
    return new_late_stream();
  }
  [[nodiscard]] c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return new_late_stream();
  }
  [[nodiscard]] c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(std::exchange(current(), stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    streams().run_until(streams().here(stream.id()));
  }
  [[nodiscard]] bool queryStream(const c10::Stream& stream) const override {
    return streams().is_done(streams().here(stream.id()));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = std::make_unique<Place>().release();
    *static_cast<Place*>(*event) = streams().here(stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    streams().give(stream.id(),
                   [place = *static_cast<Place*>(event)] { streams().run_until(place); });
  }
  [[nodiscard]] bool queryEvent(void* event) const override {
    return streams().is_done(*static_cast<Place*>(event));
  }
  void synchronizeEvent(void* event) const override {
    streams().run_until(*static_cast<Place*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<Place> owned(static_cast<Place*>(event));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, LateGuard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("zero_", &zero);
  library.impl("_has_compatible_shallow_copy_type", &has_same_kind);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("view", &at::native::view);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
}

}  // namespace

c10::Device late_device() { return c10::Device(type, 0); }

at::Tensor on_late_device(const at::Tensor& host) { return host.to(late_device()); }

void count_late_devices(int count) {
  if (!c10::is_privateuse1_backend_registered()) c10::register_privateuse1_backend("late");
  device_count() = count;
}

c10::Stream new_late_stream() { return stream_of(streams().make()); }

void fill_later(const at::Tensor& tensor, float value) {
  streams().give(current(), [tensor = tensor.detach(), value] {
    std::fill_n(tensor.mutable_data_ptr<float>(), tensor.numel(), value);
  });
}

float late_value(const at::Tensor& tensor, std::int64_t index) {
  return tensor.cpu()[index].item<float>();
}

}  // namespace lockstep::test
