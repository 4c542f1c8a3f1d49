// The order between a c10d backend's operations and earlier work on a device. The device is the
// tests' own, and the backend behaves as PyTorch's do: it starts after the current stream.
#include <lockstep/base/error.h>
#include <lockstep/comm/c10d.h>
#include <lockstep/comm/group.h>
#include <lockstep/store/memory_store.h>

#include "comm/backends/c10d/store_backend.h"
#include "comm/init/backends.h"
#include "support/messages.h"
#include "support/torch/late_device.h"

#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

// Waits for the current stream, then reads its input and writes its outputs immediately.
class DeviceBackend final : public test::StoreBackend {
 public:
  using StoreBackend::StoreBackend;

  const std::string getBackendName() const override { return "device"; }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    const auto device = test::late_device();
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
    return StoreBackend::allgather(outputs, inputs, options);
  }
};

void run_on_device(int size, const std::function<void(Group)>& rank) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::jthread> threads;
  for (int number = 0; number < size; ++number) {
    threads.emplace_back([&, number] {
      BackendOptions options{.join_timeout = 20s,
                             .c10d = [](const auto& part, int place, int ranks, Duration) {
                               return c10::make_intrusive<DeviceBackend>(part, place, ranks);
                             }};
      try {
        rank({make_backend("device", store, number, size, options), "world", 20s});
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << number << ": " << error.what();
      }
    });
  }
}

TEST(C10dStreamOrder, ReadsWhatTheStreamWasGivenBeforeThePost) {
  run_on_device(2, [](Group group) {
    auto mine = test::on_late_device(at::zeros({2}));
    auto all = test::on_late_device(at::zeros({4}));
    const c10::StreamGuard on(test::new_late_stream());
    test::fill_later(mine, group.rank() + 1.0f);
    group.all_gather(all, mine).wait();
    EXPECT_EQ(test::late_value(all, 1), 1);
    EXPECT_EQ(test::late_value(all, 2), 2);
  });
}

// Uneven parts are copied on the device, and the run issues the copies to a stream of their own.
TEST(C10dStreamOrder, OutputsAreThereForEveryStreamAfterTheWait) {
  run_on_device(3, [](Group group) {
    const std::vector<std::int64_t> counts{1, 3, 2};
    auto mine = test::on_late_device(at::full({counts[group.rank()]}, group.rank() + 1.0f));
    auto all = test::on_late_device(at::zeros({6}));
    auto work = group.all_gather(all, mine, counts);
    const c10::StreamGuard on(test::new_late_stream());
    work.wait();
    EXPECT_EQ(test::late_value(all, 0), 1);
    EXPECT_EQ(test::late_value(all, 3), 2);
    EXPECT_EQ(test::late_value(all, 5), 3);
  });
}

// Work issued to the device after the post may change the input only after the wait. Work on other
// memory does not delay the operation.
TEST(C10dStreamOrder, DoesNotWaitForWhatIsGivenLater) {
  run_on_device(2, [](Group group) {
    auto mine = test::on_late_device(at::full({1}, group.rank() + 1.0f));
    auto all = test::on_late_device(at::zeros({2}));
    auto later = test::on_late_device(at::zeros({1}));
    const auto stream = test::new_late_stream();
    const c10::StreamGuard on(stream);
    auto work = group.all_gather(all, mine);
    test::fill_later(later, 7);
    work.wait();
    EXPECT_FALSE(stream.query());
    EXPECT_EQ(test::late_value(all, 1), 2);
    EXPECT_EQ(test::late_value(later, 0), 7);
  });
}

// Blocks the thread that launches a sum until abort(), as NCCL does while it connects to a peer
// that does not come.
class BlockedBackend final : public test::StoreBackend {
 public:
  using StoreBackend::StoreBackend;

  const std::string getBackendName() const override { return "blocked"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    if (aborted_.get_future().wait_for(30s) != std::future_status::ready)
      throw std::runtime_error("not aborted");
    throw std::runtime_error("aborted");
  }
  void abort() override {
    if (!is_aborted_.exchange(true)) aborted_.set_value();
  }

 private:
  std::promise<void> aborted_;
  std::atomic<bool> is_aborted_ = false;
};

TEST(C10dLaunch, ThatBlocksEndsWhenTheGroupIsAborted) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::jthread> ranks;
  for (int number = 0; number < 2; ++number) {
    ranks.emplace_back([&, number] {
      const BackendOptions options{
          .join_timeout = 20s,
          .c10d = [](const auto& part, int place, int size,
                     Duration) { return c10::make_intrusive<BlockedBackend>(part, place, size); },
          .c10d_streams = true,
          .device = test::late_device()};
      Group group(make_backend("blocked", store, number, 2, options), "world", 20s);
      std::jthread aborts([number, group]() mutable {
        std::this_thread::sleep_for(200ms);
        if (number == 0) group.abort("enough");
      });
      const auto begin = Clock::now();
      const auto text = test::message_of<Aborted>(
          [&] { group.all_reduce(test::on_late_device(at::zeros({4}))).synchronize(); });
      EXPECT_NE(text.find("enough"), std::string::npos) << text;
      EXPECT_LT(Clock::now() - begin, 10s);
    });
  }
}

}  // namespace
