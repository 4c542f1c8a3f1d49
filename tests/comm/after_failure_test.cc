// Tensors after an error: they can be reused at once, in a group that is still usable.
#include "support/torch/ranks.h"
#include "support/torch/shared_object.h"

#include <lockstep/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t elements = 5 << 20;
constexpr std::array<int, 2> both{0, 1};

// Rank 1 is stopped while both ranks are in the collective. After its error, rank 0 overwrites the
// tensor and sums it in the spare group; rank 1 joins that sum as soon as it continues. Returns
// true if the collective timed out on this rank.
bool stop_and_go_on(Group world, const at::Tensor& tensor, std::chrono::microseconds delay,
                    const std::function<Work(Group&, const at::Tensor&)>& call, Store& store) {
  Group spare = *world.subset(both);
  world.set_timeout(300ms);
  tensor.fill_(3);
  world.barrier({.timeout = 20s}).wait();
  std::thread stopper;
  if (world.rank() == 1) {
    store.set("pid", std::to_string(getpid()));
    stopper = std::thread([delay] {
      std::this_thread::sleep_for(delay);
      raise(SIGSTOP);
    });
  }
  bool timed_out = false;
  try {
    call(world, tensor).wait();
  } catch (const Timeout&) {
    timed_out = true;
  }
  tensor.fill_(1);
  if (world.rank() == 0) {
    auto pid = std::stoi(store.get("pid", Deadline::after(10s)));
    std::this_thread::sleep_for(100ms);  // rank 1 is stopped by now, in or right after its call
    kill(pid, SIGCONT);
  }
  spare.all_reduce(tensor).wait();
  EXPECT_EQ(tensor.ne(2).sum().item<std::int64_t>(), 0);
  if (stopper.joinable()) stopper.join();
  spare.barrier().wait();
  return timed_out;
}

class AfterFailure : public testing::TestWithParam<bool> {
 protected:
  static void run(const std::function<Work(Group&, const at::Tensor&)>& call) {
    const SharedObject<std::atomic<int>> timeouts;
    int tries = 0;
    // If a busy machine ends the collective before rank 1 is stopped, the test tries again.
    for (auto delay : {1000us, 3000us, 500us, 200us, 0us, 0us, 0us}) {
      if (++tries > 2 && *timeouts > 0) break;
      RankRendezvous place(BackendKind::shm, 2);
      auto results = run_ranks(2, [&](int rank) {
        Group world = place.join(rank);
        at::Tensor tensor =
            GetParam() ? world.empty_shared({elements}) : at::empty({elements}, at::kFloat);
        if (stop_and_go_on(world, tensor, delay, call, *place.store())) ++*timeouts;
      });
      for (const auto& result : results) EXPECT_TRUE(result.ok()) << result;
    }
    EXPECT_GT(*timeouts, 0) << "no collective was interrupted";
  }
};

TEST_P(AfterFailure, AnAllReducedTensorIsUsedAgain) {
  run([](Group& group, const at::Tensor& tensor) { return group.all_reduce(tensor); });
}

TEST_P(AfterFailure, ABroadcastTensorIsUsedAgain) {
  run([](Group& group, const at::Tensor& tensor) { return group.broadcast(tensor, 1); });
}

TEST_P(AfterFailure, AGatheredTensorIsUsedAgain) {
  run([](Group& group, const at::Tensor& tensor) {
    auto mine = tensor.narrow(0, group.rank() * (elements / 2), elements / 2);
    return group.all_gather(tensor, mine);
  });
}

INSTANTIATE_TEST_SUITE_P(Memory, AfterFailure, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "shared" : "ordinary");
});

}  // namespace
}  // namespace lockstep::test
