// Loaders that copy their batches to the simulated accelerator.
#include <lockstep/data/loader.h>
#include <lockstep/data/stream.h>

#include "support/accelerator/expectations.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

using torch::data::Example;

constexpr std::int64_t samples = 24;
constexpr std::int64_t batch_size = 4;

class DeviceLoader : public AcceleratorTest {};

// Sample i: 64 elements of value i as data, and i as target.
struct Rows {
  [[nodiscard]] std::size_t size() const { return samples; }
  [[nodiscard]] Example<> get(std::size_t index) const {
    const auto value = static_cast<double>(index);
    return {at::full({64}, value, at::kDouble), at::scalar_tensor(value, at::kDouble)};
  }
};

struct RowStream {
  [[nodiscard]] std::optional<Example<>> next() {
    if (place == samples) return std::nullopt;
    return Rows().get(static_cast<std::size_t>(place++));
  }
  std::int64_t place = 0;
};

// Sums over the batches of a loop. As in training, the sums run on the current stream, and batches
// are released while the device still uses them.
template <class L>
double sum_of(L& loader, c10::Device device) {
  at::Tensor sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device));
  for (auto& batch : loader.epoch(0)) {
    EXPECT_EQ(batch.data.device(), device);
    sum += (batch.data * batch.target.unsqueeze(1)).sum();
  }
  return sum.item<double>();
}

double expected_sum() {
  double sum = 0;
  for (std::int64_t i = 0; i < samples; ++i) sum += 64. * static_cast<double>(i * i);
  return sum;
}

data::LoaderOptions to_device(int workers) {
  return {.batch_size = batch_size, .workers = workers, .prefetch = 3, .device = device(0)};
}

TEST_F(DeviceLoader, HandsOutTheBatchesOnTheDeviceUnderEverySchedule) {
  for (std::uint64_t seed = 0; seed < 6; ++seed)
    for (int workers : {0, 1, 3}) {
      Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
      auto loader = data::loader(Rows(), to_device(workers));
      EXPECT_EQ(sum_of(loader, device(0)), expected_sum()) << seed << ", " << workers;
    }
}

TEST_F(DeviceLoader, StreamsDoTheSame) {
  for (int workers : {0, 2}) {
    auto loader =
        data::stream_loader([](std::int64_t) { return RowStream(); },
                            {.batch_size = batch_size, .workers = workers, .device = device(0)});
    EXPECT_EQ(sum_of(loader, device(0)), expected_sum()) << workers;
  }
}

TEST_F(DeviceLoader, AnotherCurrentStreamIsOrderedToo) {
  const c10::StreamGuard guard(new_stream(device(0)));
  auto loader = data::loader(Rows(), to_device(1));
  EXPECT_EQ(sum_of(loader, device(0)), expected_sum());
}

TEST_F(DeviceLoader, AMissingWaitIsReported) {
  const int found = expect_dropped_waits_found(0, [] {
    auto loader = data::loader(Rows(), to_device(0));
    return sum_of(loader, device(0)) == expected_sum();
  });
  EXPECT_EQ(found, samples / batch_size);  // one wait per batch, and each is needed
}

TEST_F(DeviceLoader, DoesNotBlockForTheDevice) {
  auto loader = data::loader(Rows(), to_device(0));
  expect_synchronizations_at_most(0, 0, [&] {
    at::Tensor sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device(0)));
    for (auto& batch : loader.epoch(0)) sum += batch.data.sum();
  });
}

// A task may read each of its batches into one pinned buffer.
TEST_F(DeviceLoader, APinnedBufferMayBeFilledAgainAtOnce) {
  const data::DeviceCopies copies(device(0));
  at::Tensor buffer = at::ones({256}).pin_memory();
  for (const bool is_view : {false, true}) {
    at::Tensor batch = is_view ? buffer.narrow(0, 0, 100) : buffer;
    const data::Arrival arrival = copies.begin(std::vector<at::Tensor*>{&batch});
    buffer.fill_(2);
    arrival.wait();
    EXPECT_EQ(batch.sum().item<float>(), static_cast<float>(batch.numel())) << is_view;
    buffer.fill_(1);
  }
  at::Tensor own = at::ones({256}).pin_memory();
  expect_synchronizations_at_most(0, 0,
                                  [&] { copies.begin(std::vector<at::Tensor*>{&own}).wait(); });
}

TEST_F(DeviceLoader, PinnedBatchesStayInHostMemory) {
  for (bool is_pinned : {false, true}) {
    auto loader =
        data::loader(Rows(), {.batch_size = batch_size, .workers = 1, .pin_memory = is_pinned});
    for (auto& batch : loader.epoch(0)) {
      EXPECT_TRUE(batch.data.is_cpu());
      EXPECT_EQ(Machine::get().memory().is_pinned(batch.data.const_data_ptr()), is_pinned);
      EXPECT_EQ(Machine::get().memory().is_pinned(batch.target.const_data_ptr()), is_pinned);
    }
  }
}

// The task of a user with a batch of its own type.
struct Pair {
  at::Tensor left, right;
};
std::vector<at::Tensor*> tensors_of(Pair& pair) { return {&pair.left, &pair.right}; }

struct Unknown {
  at::Tensor values;
};

template <class Batch>
struct Made {
  [[nodiscard]] std::size_t size() const { return samples; }
  [[nodiscard]] Batch get_batch(c10::ArrayRef<std::size_t> /*indices*/) const {
    if constexpr (std::is_same_v<Batch, Pair>)
      return {at::arange(3), at::Tensor()};
    else
      return {at::arange(3)};
  }
};

TEST_F(DeviceLoader, TakesABatchOfOnesOwnTypeWhoseTensorsItCanFind) {
  auto loader = data::loader(Made<Pair>(), to_device(1));
  for (auto& pair : loader.epoch(0)) {
    EXPECT_EQ(pair.left.device(), device(0));
    EXPECT_TRUE(pair.left.cpu().equal(at::arange(3)));
    EXPECT_FALSE(pair.right.defined());
  }
  auto other = data::loader(Made<Unknown>(), to_device(0));
  EXPECT_THROW((void)other.epoch(0).begin(), InvalidArgument);
}

}  // namespace
