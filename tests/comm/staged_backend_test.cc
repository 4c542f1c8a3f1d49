// Staging of tensors in a device's memory, on a device of this test's own: LibTorch's spare device
// type, with memory that the CPU's kernels are not let near.
#include "comm/staged_backend.h"

#include <lockstep/comm/group.h>
#include <lockstep/comm/local.h>

#include "comm/local/backend.h"

#include <gtest/gtest.h>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

using namespace lockstep;

namespace {

constexpr auto spare = c10::DeviceType::PrivateUse1;

class SpareAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* memory = std::calloc(bytes + 1, 1);
    return {memory, memory, &std::free, c10::Device(spare, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

SpareAllocator& allocator() {
  static SpareAllocator one;
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

// Both ends are dense: all that staging does.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  EXPECT_TRUE(self.is_contiguous() && to.is_contiguous());
  std::memcpy(to.data_ptr(), self.data_ptr(), self.nbytes());
  return to;
}

// It counts no device: for one, autograd would start a thread, and then no rank could be forked.
struct SpareGuard : c10::impl::NoOpDeviceGuardImpl<spare> {
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, SpareGuard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("view", &at::native::view);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
}

at::Tensor on_device(const at::Tensor& host) { return host.to(c10::Device(spare, 0)); }

// rank + 1, rank + 2, ...
at::Tensor counting(int rank, std::int64_t length) {
  return on_device(at::arange(rank + 1, rank + 1 + length, at::kFloat));
}

float value(const at::Tensor& tensor, std::int64_t index) {
  return tensor.cpu()[index].item<float>();
}

void run_staged(int size, const std::function<void(Group)>& rank) {
  auto world = std::make_shared<local::World>(size, "world");
  std::vector<std::jthread> threads;
  for (int number = 0; number < size; ++number) {
    threads.emplace_back([&, number] {
      auto backend = std::make_shared<local::LocalBackend>(world, number, size);
      Group group(std::make_shared<StagedBackend>(backend), "world", std::chrono::seconds(20));
      try {
        rank(group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << number << ": " << error.what();
      }
    });
  }
}

TEST(StagedBackend, OutputsAreBackAfterTheWait) {
  run_staged(3, [](Group group) {
    auto tensor = counting(group.rank(), 5);
    ASSERT_FALSE(tensor.is_cpu());
    group.all_reduce(tensor).wait();
    EXPECT_EQ(value(tensor, 0), 6);
    EXPECT_EQ(value(tensor, 4), 18);
    auto gathered = on_device(at::zeros({6}));
    group.all_gather(gathered, tensor.narrow(0, group.rank(), 2)).wait();
    EXPECT_EQ(value(gathered, 5), 15);
  });
}

TEST(StagedBackend, HostTensorsGoStraightThrough) {
  run_staged(2, [](Group group) {
    auto tensor = at::full({4}, group.rank() + 1.0f);
    group.all_reduce(tensor).wait();
    EXPECT_EQ(tensor[3].item<float>(), 3);
    auto shared = group.empty_shared({3}, at::kFloat);
    EXPECT_TRUE(shared.is_cpu());
  });
}

// The second operation reads what the first has not brought back yet.
TEST(StagedBackend, DroppedOperationsStillTakeEffectInOrder) {
  run_staged(2, [](Group group) {
    auto tensor = counting(group.rank(), 6);
    group.all_reduce(tensor).drop();                  // 3 5 7 9 11 13
    group.all_reduce(tensor.narrow(0, 2, 3)).drop();  // 3 5 14 18 22 13
    auto gathered = on_device(at::zeros({4}));
    group.all_gather(gathered, tensor.narrow(0, 3, 2)).wait();
    EXPECT_EQ(value(gathered, 0), 18);
    EXPECT_EQ(value(gathered, 3), 22);
    EXPECT_EQ(value(tensor, 1), 5);
    EXPECT_EQ(value(tensor, 2), 14);
    EXPECT_EQ(value(tensor, 5), 13);
  });
}

TEST(StagedBackend, MemoryThatOverlapsInPartIsWaitedFor) {
  run_staged(2, [](Group group) {
    auto tensor = counting(group.rank(), 6);
    group.all_reduce(tensor.narrow(0, 0, 4)).drop();
    group.all_reduce(tensor.narrow(0, 2, 4)).wait();
    EXPECT_EQ(value(tensor, 0), 3);
    EXPECT_EQ(value(tensor, 2), 14);  // 7 on both
    EXPECT_EQ(value(tensor, 5), 13);
  });
}

TEST(StagedBackend, MessagesAndPartsOfTheGroup) {
  run_staged(3, [](Group group) {
    auto part = group.split(group.rank() == 1 ? 1 : 0);
    auto tensor = counting(group.rank(), 3);
    part.all_reduce(tensor).wait();
    EXPECT_EQ(value(tensor, 0), group.rank() == 1 ? 2 : 4);
    auto received = on_device(at::zeros({3}));
    auto recv = group.recv(received, (group.rank() + 2) % 3);
    auto send = group.send(tensor, (group.rank() + 1) % 3);
    send.wait();
    recv.wait();
    EXPECT_EQ(value(received, 0), group.rank() == 2 ? 2 : 4);
  });
}

TEST(StagedBackend, OnlyTheRootOfAReduceIsWritten) {
  run_staged(2, [](Group group) {
    auto tensor = counting(group.rank(), 2);
    group.reduce(tensor, 1).wait();
    EXPECT_EQ(value(tensor, 0), group.rank() == 1 ? 3 : 1);
  });
}

}  // namespace
