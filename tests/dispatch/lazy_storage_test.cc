// Collectives on tensors in a lazy storage, and lazy storages over one another.
#include "dispatch/lazy_storage.h"

#include "dispatch/key.h"

#include <lockstep/comm/local.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <mutex>

namespace lockstep::dispatch {
namespace {

// Asks for a lock, as a block of recomputed activations does.
class Locking final : public StorageOwner {
 public:
  void pin(const StorageUse&) override { const std::lock_guard lock(mutex); }
  void written() override {}
  void unpin() noexcept override {}

  std::mutex mutex;
};

// As in a block that is recomputed: its lock is held while it posts, and an earlier collective on
// one of its tensors is completed by another rank meanwhile.
TEST(LazyStorage, ThreadsCompleteACollectiveWithoutTheLockOfAnotherRanksStorage) {
  std::latch posted(1), holds(2);
  run_as_threads(2, [&](Group group) {
    auto owner = std::make_shared<Locking>();
    const at::Tensor memory = at::ones({4});
    LazyStorage storage(static_cast<std::int64_t>(memory.nbytes()), c10::kCPU, owner, key(),
                        "released");
    storage.attach(memory);
    const at::Tensor tensor = storage.place(at::kFloat, 0, {4}, {1});
    at::Tensor next = at::ones({4});
    if (group.rank() == 0) {
      Work first = group.all_reduce(tensor);
      posted.count_down();
      const std::lock_guard recomputes(owner->mutex);
      holds.arrive_and_wait();
      Work second = group.all_reduce(next);
      first.wait();
      second.wait();
    } else {
      posted.wait();
      holds.arrive_and_wait();
      Work first = group.all_reduce(tensor);
      group.all_reduce(next).wait();
      first.wait();
    }
    EXPECT_TRUE(memory.equal(at::full({4}, 2.0)));
    EXPECT_TRUE(next.equal(at::full({4}, 2.0)));
  });
}

// As the gradient of a pipeline's parameter, which lies in the storage of a shard's gradient.
TEST(LazyStorage, AStorageOverAnotherOneFollowsIt) {
  const auto made_over = [](const at::Tensor& memory) {
    LazyStorage storage(static_cast<std::int64_t>(memory.nbytes()), c10::kCPU,
                        std::weak_ptr<StorageOwner>(), key(), "released");
    storage.attach(memory);
    return storage;
  };
  const auto plain_in = [](const LazyStorage& storage) {
    return at::empty({0}).set_(storage.storage(), 0, {4}, {1});
  };
  LazyStorage first = made_over(at::ones({4}));
  const LazyStorage second = made_over(plain_in(first)), third = made_over(plain_in(second));
  const at::Tensor tensor = third.place(at::kFloat, 1, {3}, {1});
  EXPECT_EQ(first.uses(), 1U);
  first.attach(at::full({4}, 2.0));
  EXPECT_TRUE(tensor.equal(at::full({3}, 2.0)));
}

}  // namespace
}  // namespace lockstep::dispatch
