#include "support/accelerator/device.h"

#include "support/accelerator/device_memory.h"
#include "support/accelerator/fallback.h"
#include "support/accelerator/machine.h"
#include "support/accelerator/tensors.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace lockstep::test::accelerator {
namespace {

thread_local int current_device = 0;
thread_local bool has_chosen_device = false;  // for longer than a guard's scope
thread_local std::array<int, device_count> current_streams{};
std::array<std::atomic<int>, device_count> streams_given{};

int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device; }

c10::Device device_of_type(int index) {
  return {device_type, static_cast<c10::DeviceIndex>(index)};
}

c10::Stream stream_of(int device, int id) {
  return c10::Stream(c10::Stream::UNSAFE, device_of_type(device), id);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device_type; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto old = getDevice();
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override { return device_of_type(current_device); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == device_type && index_of(device) < device_count,
                "no such device: ", device);
    current_device = index_of(device);
    has_chosen_device = true;
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = index_of(device);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(index_of(device), current_streams.at(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const int index = index_of(device);
    return stream_of(index, 1 + streams_given.at(index)++ % (streams_per_device - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto old = getStream(stream.device());
    current_streams.at(stream.device_index()) = static_cast<int>(stream.id());
    return old;
  }

  // CUDA's guard makes the event's device current and then restores the earlier device. In a thread
  // that has chosen no device, this makes a context on device 0.
  void destroyEvent(void* event, c10::DeviceIndex index) const noexcept override {
    const std::unique_ptr<Event> owned(static_cast<Event*>(event));
    if (!owned || index <= 0 || has_chosen_device) return;
    auto& machine = Machine::get();
    machine.reports(machine.lock())
        .add(Fault::context, "a thread without a current device destroyed an event of device " +
                                 std::to_string(index));
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex index,
              c10::EventFlag) const override {
    TORCH_CHECK(index < 0 || index == stream.device_index(), "an event of ", device_of_type(index),
                " cannot be recorded on a stream of ", stream.device());
    if (*event == nullptr) *event = std::make_unique<Event>().release();
    *static_cast<Event*>(*event) = Machine::get().record(actor_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) Machine::get().wait(*static_cast<Event*>(event), actor_of(stream));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || Machine::get().query(*static_cast<Event*>(event));
  }
  bool queryStream(const c10::Stream& stream) const override {
    auto& machine = Machine::get();
    return machine.query(machine.record(actor_of(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    auto& machine = Machine::get();
    machine.synchronize(machine.record(actor_of(stream)), "stream.synchronize");
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr)
      Machine::get().synchronize(*static_cast<Event*>(event), "event.synchronize");
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    Machine::get().synchronize_device(index < 0 ? current_device : index, "device.synchronize");
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Machine::get().record_stream(data.get(), actor_of(stream));
  }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 0; }
};

// Counts the allocated bytes of each device, as LibTorch's caching allocators do. Reserved bytes
// equal allocated bytes.
class AllocatedBytes {
 public:
  void add(void* address, int device, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    blocks_[address] = {device, static_cast<std::int64_t>(bytes)};
    change(device, static_cast<std::int64_t>(bytes));
  }
  void remove(void* address) {
    const std::lock_guard lock(mutex_);
    const auto [device, bytes] = blocks_.extract(address).mapped();
    change(device, -bytes);
  }
  c10::CachingAllocator::Stat of(int device) {
    const std::lock_guard lock(mutex_);
    return stats_.at(device);
  }
  void reset_peak(int device) {
    const std::lock_guard lock(mutex_);
    stats_.at(device).peak = stats_.at(device).current;
  }

 private:
  void change(int device, std::int64_t bytes) {
    auto& stat = stats_.at(device);
    stat.current += bytes;
    stat.peak = std::max(stat.peak, stat.current);
  }

  std::mutex mutex_;
  std::map<void*, std::pair<int, std::int64_t>> blocks_;
  std::array<c10::CachingAllocator::Stat, device_count> stats_{};
};

// Never destroyed, like the machine.
AllocatedBytes& allocated_bytes() {
  static AllocatedBytes& bytes = *std::make_unique<AllocatedBytes>().release();
  return bytes;
}

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto device = device_of_type(current_device);
    if (bytes == 0) return {nullptr, nullptr, &free, device};
    void* address = Machine::get().allocate(current_actor(current_device), bytes);
    allocated_bytes().add(address, current_device, bytes);
    return {address, address, &free, device};
  }
  static void free(void* address) {
    if (address == nullptr) return;
    allocated_bytes().remove(address);
    Machine::get().release(address);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "the simulated accelerator has no copy_data()");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Machine::get().record_stream(data.get(), actor_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes.front() = allocated_bytes().of(device);
    stats.reserved_bytes.front() = allocated_bytes().of(device);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { allocated_bytes().reset_peak(device); }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* address = Machine::get().allocate_pinned(bytes);
    return {address, address, &free, c10::Device(c10::kCPU)};
  }
  static void free(void* address) { Machine::get().release_pinned(address); }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

// Gives out seeds in program order. Each random operation has its own CPU generator, so the order
// in which the worker runs tasks does not change the numbers.
struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(int index) {
    device_ = device_of_type(index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  // If false, backward() does not join the streams of its nodes with the caller's.
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count; }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    current_device = index;
    has_chosen_device = true;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(std::exchange(current_device, index));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? getCurrentDevice() : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static std::vector<at::Generator> all = [] {
      std::vector<at::Generator> made;
      for (int i = 0; i < device_count; ++i) made.push_back(at::make_generator<Generator>(i));
      return made;
    }();
    return all.at(index < 0 ? current_device : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device : index);
  }
  at::Device getDeviceFromPtr(void* address) const override {
    return device_of_type(
        static_cast<int>(Machine::get().memory().offset_of(address) / device_bytes));
  }
  bool isPinnedPtr(const void* address) const override {
    return Machine::get().memory().is_pinned(address);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedAllocator allocator;
    return &allocator;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

c10::Allocator& device_allocator() {
  static DeviceAllocator allocator;
  return allocator;
}

c10::Device device(int index) {
  static std::once_flag once;
  std::call_once(once, [] {
    prefer_cpu_kernels();
    c10::register_privateuse1_backend("sim");
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::SetAllocator(device_type, &device_allocator());
  });
  return device_of_type(index);
}

c10::Stream new_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device_type).getStreamFromGlobalPool(device);
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device_type).getStream(device);
}

}  // namespace lockstep::test::accelerator
