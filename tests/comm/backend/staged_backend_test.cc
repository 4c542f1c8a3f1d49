// Staging of tensors in device memory, with the tests' own device.
#include "comm/backend/staged_backend.h"

#include <lockstep/comm/group.h>

#include "support/torch/late_device.h"
#include "support/torch/staged_ranks.h"

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>

#include <optional>

using namespace lockstep;

namespace {

using test::late_value;
using test::on_late_device;
using test::run_staged;

// rank + 1, rank + 2, ...
at::Tensor counting(int rank, std::int64_t length) {
  return on_late_device(at::arange(rank + 1, rank + 1 + length, at::kFloat));
}

TEST(StagedBackend, OutputsAreBackAfterTheWait) {
  run_staged(3, [](Group group) {
    auto tensor = counting(group.rank(), 5);
    ASSERT_FALSE(tensor.is_cpu());
    group.all_reduce(tensor).wait();
    EXPECT_EQ(late_value(tensor, 0), 6);
    EXPECT_EQ(late_value(tensor, 4), 18);
    auto gathered = on_late_device(at::zeros({6}));
    group.all_gather(gathered, tensor.narrow(0, group.rank(), 2)).wait();
    EXPECT_EQ(late_value(gathered, 5), 15);
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

// The second operation reads memory into which the first result has not been copied back yet.
TEST(StagedBackend, DroppedOperationsStillTakeEffectInOrder) {
  run_staged(2, [](Group group) {
    auto tensor = counting(group.rank(), 6);
    group.all_reduce(tensor).drop();                  // 3 5 7 9 11 13
    group.all_reduce(tensor.narrow(0, 2, 3)).drop();  // 3 5 14 18 22 13
    auto gathered = on_late_device(at::zeros({4}));
    group.all_gather(gathered, tensor.narrow(0, 3, 2)).wait();
    EXPECT_EQ(late_value(gathered, 0), 18);
    EXPECT_EQ(late_value(gathered, 3), 22);
    EXPECT_EQ(late_value(tensor, 1), 5);
    EXPECT_EQ(late_value(tensor, 2), 14);
    EXPECT_EQ(late_value(tensor, 5), 13);
  });
}

TEST(StagedBackend, MemoryThatOverlapsInPartIsWaitedFor) {
  run_staged(2, [](Group group) {
    auto tensor = counting(group.rank(), 6);
    group.all_reduce(tensor.narrow(0, 0, 4)).drop();
    group.all_reduce(tensor.narrow(0, 2, 4)).wait();
    EXPECT_EQ(late_value(tensor, 0), 3);
    EXPECT_EQ(late_value(tensor, 2), 14);  // 7 on both ranks
    EXPECT_EQ(late_value(tensor, 5), 13);
  });
}

TEST(StagedBackend, MessagesAndPartsOfTheGroup) {
  run_staged(3, [](Group group) {
    auto part = group.split(group.rank() == 1 ? 1 : 0);
    auto tensor = counting(group.rank(), 3);
    part.all_reduce(tensor).wait();
    EXPECT_EQ(late_value(tensor, 0), group.rank() == 1 ? 2 : 4);
    auto received = on_late_device(at::zeros({3}));
    auto recv = group.recv(received, (group.rank() + 2) % 3);
    auto send = group.send(tensor, (group.rank() + 1) % 3);
    send.wait();
    recv.wait();
    EXPECT_EQ(late_value(received, 0), group.rank() == 2 ? 2 : 4);
  });
}

// The later wait() has copied the output back, on another stream.
TEST(StagedBackend, EachWaitOrdersItsStreamAfterTheCopy) {
  run_staged(2, [](Group group) {
    auto tensor = counting(group.rank(), 2);
    auto first = group.all_reduce(tensor);
    auto later = group.barrier();
    {
      const c10::StreamGuard on(test::new_late_stream());
      later.wait();
    }
    first.wait();
    EXPECT_EQ(late_value(tensor, 0), 3);
  });
}

TEST(StagedBackend, OnlyTheRootOfAReduceIsWritten) {
  run_staged(2, [](Group group) {
    auto tensor = counting(group.rank(), 2);
    group.reduce(tensor, 1).wait();
    EXPECT_EQ(late_value(tensor, 0), group.rank() == 1 ? 3 : 1);
  });
}

// The device executes nothing before a rank waits for it.
TEST(StagedBackend, ReadsWhatTheStreamWasGivenBeforeThePost) {
  run_staged(2, [](Group group) {
    const c10::StreamGuard on(test::new_late_stream());
    auto tensor = counting(group.rank(), 3);
    test::fill_later(tensor, 5);
    group.all_reduce(tensor).wait();
    EXPECT_EQ(late_value(tensor, 2), 10);
  });
}

// The stream that waits differs from the stream to which the fill was issued.
TEST(StagedBackend, AnOutputComesAfterWhatItsMemoryWasGivenBeforeThePost) {
  run_staged(2, [](Group group) {
    auto tensor = counting(group.rank(), 2);
    if (group.rank() == 0) return group.send(tensor, 1).wait();
    const auto other = test::new_late_stream();
    std::optional<Work> work;
    {
      const c10::StreamGuard on(other);
      test::fill_later(tensor, -1);
      work = group.recv(tensor, 0);
    }
    work->wait();
    EXPECT_EQ(late_value(tensor, 0), 1);
    other.synchronize();
    EXPECT_EQ(late_value(tensor, 1), 2);
  });
}

}  // namespace
