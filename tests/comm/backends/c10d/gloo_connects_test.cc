// Gloo's ranks connect; one of them is lost on the way.
#include "comm/backends/c10d/make.h"

#include <lockstep/base/error.h>
#include <lockstep/store/memory_store.h>
#include <lockstep/store/prefix_store.h>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::c10d_backend {
namespace {

using namespace std::chrono_literals;

// The store as a rank of a round sees it: waits throw once the round has ended.
class StoreOfRound : public PrefixStore {
 public:
  StoreOfRound(std::shared_ptr<Store> below, std::function<void()> before_wait)
      : PrefixStore("", std::move(below)), before_wait_(std::move(before_wait)) {}

  void end() { has_ended_ = true; }
  std::string get(std::string_view key, Deadline deadline) override {
    const std::array keys{std::string(key)};
    wait(keys, deadline);
    return PrefixStore::get(key, deadline);
  }
  void wait(std::span<const std::string> keys, Deadline deadline) override {
    before_wait_();
    for (;;) {
      try {
        return PrefixStore::wait(keys, deadline.or_sooner(Deadline::after(5ms)));
      } catch (const Timeout&) {
        if (has_ended_) throw PeerLost("the round has ended");
        if (deadline.passed()) throw;
      }
    }
  }

 private:
  std::function<void()> before_wait_;
  std::atomic<bool> has_ended_ = false;
};

void wait_until(const std::atomic<bool>& what) {
  while (!what) std::this_thread::sleep_for(1ms);
}

// Rank 1 has put its address into the store, but does not connect until rank 0 has left.
void lose_a_rank() {
  const auto below = std::make_shared<MemoryStore>();
  // Shared with the thread in which rank 1 connects, because make_gloo leaves that thread behind.
  struct Flags {
    std::atomic<bool> is_stuck = false, may_go_on = false;
  };
  const auto flags = std::make_shared<Flags>();
  const auto of_0 = std::make_shared<StoreOfRound>(below, [] {});
  const auto of_1 = std::make_shared<StoreOfRound>(below, [flags] {
    flags->is_stuck = true;
    wait_until(flags->may_go_on);
  });
  const auto connect = [](const std::shared_ptr<Store>& store, int rank) {
    static_cast<void>(make_gloo(store, "world", rank, 2, {}));
  };
  std::thread lost([&] {
    try {
      connect(of_1, 1);
    } catch (const Error&) {
      // Rank 1 connects too late: rank 0 has abandoned the connection or closed it.
    }
  });
  std::thread left([&] { EXPECT_THROW(connect(of_0, 0), PeerLost); });
  wait_until(flags->is_stuck);
  of_0->end();
  left.join();
  flags->may_go_on = true;
  of_1->end();
  lost.join();
}

// Addresses decide which of the two ranks connects to the other, and the connecting one need not
// wait.
TEST(GlooConnects, NoLongerThanTheRoundLasts) {
  if (!has_gloo()) GTEST_SKIP() << "no Gloo in this build";
  for (int turn = 0; turn < 5; ++turn) lose_a_rank();
}

}  // namespace
}  // namespace lockstep::c10d_backend
