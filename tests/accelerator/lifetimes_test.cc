// Objects that are destroyed while the device still works for them, several handles at once, and
// tensors of every form, on the simulated accelerator.
#include <lockstep/base/error.h>
#include <lockstep/comm/local.h>

#include "accelerator/small_training.h"
#include "support/accelerator/expectations.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>

#include <chrono>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

at::TensorOptions floats_on(c10::Device device) {
  return at::TensorOptions(device).dtype(at::kFloat);
}

class Lifetimes : public AcceleratorTest {};

// Trains two models whose steps, and so whose collectives, alternate.
std::vector<Values> two_models(Group group, c10::Device device) {
  auto one = model_on(device), other = model_on(device);
  DistributedDataParallel ddp(one, group, {.bucket_bytes = 600, .first_bucket_bytes = 600});
  auto sharded = fully_shard(other, group, {.units = {"layers.*"}});
  torch::optim::SGD of_one(ddp.parameters(), 0.1), of_other(sharded.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    ddp.zero_grad();
    sharded.zero_grad();
    const auto loss = loss_of(one, 10 * group.rank() + step);
    const auto other_loss = loss_of(other, 20 * group.rank() + step);
    loss.backward();
    other_loss.backward();
    of_other.step();
    of_one.step();
  }
  return {on_cpu(ddp), on_cpu(sharded)};
}

TEST_F(Lifetimes, TwoModelsOnOneGroupGetTheBitsOfTheCpu) {
  std::vector<Values> expected;
  run_as_threads(ranks, [&](Group group) {
    auto found = two_models(group, c10::kCPU);
    if (group.is_root()) expected = std::move(found);
  });
  for (std::uint64_t seed : {0, 1, 2, 3}) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    run_ranks(ranks, [&](Group group, c10::Device device) {
      const auto found = two_models(group, device);
      for (std::size_t i = 0; i < found.size(); ++i) expect_equal(found[i], expected[i]);
    });
  }
}

// Nothing waits for the averages of the buckets, and the model's memory is reused at once.
TEST_F(Lifetimes, OfAHandleMayEndWithWorkInFlight) {
  run_ranks(ranks, [](Group group, c10::Device device) {
    for (int i = 0; i < 4; ++i) {
      auto model = model_on(device);
      auto handle = i % 2 == 0
                        ? Handle(DistributedDataParallel(
                              model, group, {.bucket_bytes = 600, .first_bucket_bytes = 600}))
                        : Handle(fully_shard(model, group, {.units = {"layers.*"}}));
      const auto loss = loss_of(model, group.rank());
      if (i < 2) loss.backward();
    }
    auto sum = at::ones({100}, floats_on(device));
    group.all_reduce(sum).wait();
    EXPECT_EQ(sum.sum().item<float>(), 100 * ranks);
  });
}

TEST_F(Lifetimes, OfAGroupMayEndWithCallsInFlight) {
  run_ranks(ranks, [](Group group, c10::Device device) {
    auto kept = at::ones({1000}, floats_on(device));
    {
      auto part = group.split(0);
      part.all_reduce(at::ones({1000}, floats_on(device))).drop();
      part.all_reduce(kept).wait();  // of the stream, not of the host
    }
    kept.mul_(2);
    const auto next = at::zeros({1000}, floats_on(device));
    EXPECT_EQ(kept.sum().item<float>(), 1000 * ranks * 2);
    EXPECT_EQ(next.sum().item<float>(), 0);
  });
}

// Each thread has a group and a stream, so the launches of the two groups have no common order. On
// one stream the groups would wait for each other.
TEST_F(Lifetimes, OfTwoThreadsWithAGroupEach) {
  run_ranks(ranks, [](Group group, c10::Device device) {
    auto train = [&](Group own, int seed) {
      const c10::StreamGuard on(new_stream(device));
      auto values = at::full({100}, seed, floats_on(device));
      for (int i = 0; i < 10; ++i) {
        own.all_reduce(values, Op::average).wait();
        values.add_(1);
      }
      EXPECT_EQ(values.sum().item<float>(), 100.F * static_cast<float>(seed + 10));
    };
    auto other = group.split(0);
    std::jthread thread([&] { train(other, 5); });
    train(group, 1);
  });
  expect_no_faults_but(Fault::order);
}

TEST_F(Lifetimes, OfATensorGoOnAfterAnError) {
  run_ranks(ranks, [](Group group, c10::Device device) {
    auto values = at::ones({100}, floats_on(device));
    group.all_reduce(values).wait();
    if (group.rank() == 1) {
      group.barrier().wait();
      group.abort("rank 1 gives up");
      return;
    }
    (void)test::message_of<Error>([&] {
      group.barrier().wait();  // rank 1 may end the group before this rank has seen its end
      for (;;) group.all_reduce(values, Op::average).synchronize();
    });
    // After the failed call the tensor's values are undefined, but it can be used.
    values.fill_(3);
    const auto copy = values + 1;
    EXPECT_EQ(copy.sum().item<float>(), 400);
    EXPECT_TRUE(values.cpu().eq(3).all().item<bool>());
  });
  (void)Machine::get().take_reports();  // of a call that only one rank launched
}

class Forms : public AcceleratorTest {};

TEST_F(Forms, OfViewsAreReducedInPlace) {
  run_ranks(ranks, [](Group group, c10::Device device) {
    auto whole = at::ones({8, 10}, floats_on(device));
    group.all_reduce(whole.narrow(0, 2, 3)).wait();
    group.all_reduce(whole[7]).wait();
    whole.add_(1);
    const auto found = whole.cpu();
    for (int row = 0; row < 8; ++row)
      EXPECT_EQ(found[row].sum().item<float>(),
                10 * (((row >= 2 && row < 5) || row == 7 ? ranks : 1) + 1))
          << row;
  });
}

// The views overlap: the second call runs after the first one, and the reader after both.
TEST_F(Forms, OfOneStorageAreOrdered) {
  run_ranks(ranks, [](Group group, c10::Device device) {
    auto whole = at::ones({100}, floats_on(device));
    auto first = group.all_reduce(whole.narrow(0, 0, 60));
    auto second = group.all_reduce(whole.narrow(0, 40, 60));
    first.wait();
    second.wait();
    EXPECT_EQ(whole.sum().item<float>(), 40 * 2 + 20 * 4 + 40 * 2);
  });
}

TEST_F(Forms, WithGapsAreRefusedByOneLine) {
  run_ranks(ranks, [](Group group, c10::Device device) {
    auto whole = at::ones({8, 10}, floats_on(device));
    const auto gaps =
        test::message_of<InvalidArgument>([&] { group.all_reduce(whole.narrow(1, 0, 5)).wait(); });
    EXPECT_NE(gaps.find("contiguous"), std::string::npos) << gaps;
    EXPECT_EQ(gaps.find('\n'), std::string::npos) << gaps;
    const auto turned =
        test::message_of<InvalidArgument>([&] { group.all_reduce(whole.t()).wait(); });
    EXPECT_NE(turned.find("contiguous"), std::string::npos) << turned;
    group.all_reduce(whole).wait();  // the group is usable
    EXPECT_EQ(whole.sum().item<float>(), 80 * ranks);
  });
}

TEST_F(Forms, WithoutElementsAreReducedAndGathered) {
  run_ranks(ranks, [](Group group, c10::Device device) {
    auto none = at::empty({0, 4}, floats_on(device));
    group.all_reduce(none).wait();
    group.broadcast(none).wait();
    auto all = at::empty({0}, floats_on(device)), part = at::empty({0}, floats_on(device));
    group.all_gather(all, part).wait();
    group.reduce_scatter(part, all).synchronize();
    // Only rank 0 sends, and only rank 1 receives, an element.
    const bool sends = group.rank() == 0;
    const std::vector<std::int64_t> sent{0, sends ? 1 : 0}, received{sends ? 0 : 1, 0};
    auto from = at::full({sends ? 1 : 0}, 7, floats_on(device));
    auto to = at::zeros({sends ? 0 : 1}, floats_on(device));
    group.all_to_all(to, from, received, sent).wait();
    EXPECT_EQ(to.sum().item<float>(), sends ? 0 : 7);
  });
}

}  // namespace
