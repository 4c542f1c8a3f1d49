// Collectives of the simulated accelerator: NCCL's rules, and groups of Lockstep's on them.
#include "support/accelerator/communicator.h"
#include "support/accelerator/expectations.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>

#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

class Collectives : public AcceleratorTest {
 protected:
  // Launches a call that does nothing on a rank, with a tensor of its own.
  void launch(Communicator& communicator, int rank, const c10::Stream& stream,
              const std::string& signature = "call") {
    tensors_.push_back(at::ones({8}, stream.device()));
    current_stream(stream.device()).synchronize();
    const RankBytes part{.output = tensors_.back().mutable_data_ptr(), .output_bytes = 32};
    communicator.launch(
        rank, test::accelerator::actor_of(stream.device_index(), static_cast<int>(stream.id())),
        signature, part, [](const auto&) {});
  }

 private:
  std::vector<at::Tensor> tensors_;
};

TEST_F(Collectives, ReportACallThatDiffersBetweenRanks) {
  Communicator communicator(2, "mixed");
  const auto first = new_stream(device(0)), second = new_stream(device(1));
  launch(communicator, 0, first, "all_reduce");
  launch(communicator, 1, second, "broadcast");
  expect_fault(Fault::order, "call 0 of mixed is 'broadcast' on rank 1", "'all_reduce' on rank 0");
}

TEST_F(Collectives, ReportARankThatNeverLaunches) {
  Machine::get().set({.longest_idle = std::chrono::milliseconds(200)});
  Communicator communicator(2, "alone");
  const auto stream = new_stream(device(0));
  launch(communicator, 0, stream);
  stream.synchronize();
  expect_fault(Fault::stall, "call 0 of alone", "not launched by rank 1");
}

TEST_F(Collectives, ReportCommunicatorsThatAStreamUsesInOppositeOrders) {
  Machine::get().set({.longest_idle = std::chrono::milliseconds(200)});
  Communicator one(2, "one"), other(2, "other");
  const auto first = new_stream(device(0)), second = new_stream(device(1));
  launch(one, 0, first);
  launch(other, 0, first);
  launch(other, 1, second);
  launch(one, 1, second);
  first.synchronize();
  const auto reports = Machine::get().take_reports();
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[0].fault, Fault::order);
  EXPECT_EQ(reports[1].fault, Fault::stall);
}

// It runs here, and can hang on a device that has no room for both.
TEST_F(Collectives, ReportOppositeOrdersOnStreamsOfTheirOwn) {
  Communicator one(2, "left"), other(2, "right");
  launch(one, 0, new_stream(device(0)));
  launch(other, 0, new_stream(device(0)));
  launch(other, 1, new_stream(device(1)));
  launch(one, 1, new_stream(device(1)));
  expect_fault(Fault::order, "left", "right");
}

TEST_F(Collectives, ReportACycleOfThreeCommunicators) {
  Communicator a(2, "a"), b(2, "b"), c(2, "c");
  launch(a, 0, new_stream(device(0)));
  launch(c, 1, new_stream(device(0)));
  launch(b, 0, new_stream(device(1)));
  launch(a, 1, new_stream(device(1)));
  expect_no_faults();
  launch(c, 0, new_stream(device(2)));
  launch(b, 1, new_stream(device(2)));
  expect_fault(Fault::order, "different orders");
}

TEST_F(Collectives, EndWhenTheirCommunicatorIsAborted) {
  Communicator communicator(2, "aborted");
  const auto stream = new_stream(device(0));
  launch(communicator, 0, stream);
  communicator.abort();
  stream.synchronize();
}

TEST_F(Collectives, OfAGroupGiveWhatTheyShould) {
  run_ranks(3, [](Group group, c10::Device device) {
    const int rank = group.rank();
    auto own = at::full({5}, rank + 1, at::TensorOptions(device).dtype(at::kFloat));
    auto sum = own.clone();
    group.all_reduce(sum).wait();
    EXPECT_EQ(sum.sum().item<float>(), 30);
    auto all = at::empty({15}, own.options());
    group.all_gather(all, own).wait();
    EXPECT_EQ(all.sum().item<float>(), 30);
    auto part = at::empty({5}, own.options());
    group.reduce_scatter(part, all).wait();
    EXPECT_EQ(part.sum().item<float>(), 5.F * 3 * static_cast<float>(rank + 1));
    auto half = at::full({3}, rank + 1, own.options().dtype(at::kBFloat16));
    group.all_reduce(half, Op::average).wait();
    EXPECT_EQ(half.sum().item<float>(), 6);
    auto moved = at::arange(6, own.options()) + 10 * rank;
    auto received = at::empty({6}, own.options());
    group.all_to_all(received, moved).wait();
    EXPECT_EQ(received[5].item<float>(), static_cast<float>(20 + 2 * rank + 1));
    auto told = rank == 1 ? own.clone() : at::zeros({5}, own.options());
    group.broadcast(told, 1).wait();
    EXPECT_EQ(told.sum().item<float>(), 10);
    group.barrier().wait();
  });
}

TEST_F(Collectives, OfAGroupTakeTensorsOfTheHost) {
  run_ranks(2, [](Group group, c10::Device) {
    auto sum = at::ones({4});
    group.all_reduce(sum).wait();
    EXPECT_EQ(sum.sum().item<float>(), 8);
    auto all = at::empty({4});
    group.all_gather(all, at::full({2}, static_cast<float>(group.rank()))).wait();
    EXPECT_EQ(all.sum().item<float>(), 2);
  });
}

TEST_F(Collectives, OfAGroupSendMessagesInBothDirections) {
  run_ranks(2, [](Group group, c10::Device device) {
    const int other = 1 - group.rank();
    for (int i = 0; i < 3; ++i) {
      auto sent = at::full({4}, group.rank() + i, at::TensorOptions(device).dtype(at::kFloat));
      auto received = at::empty({4}, sent.options());
      auto receive = group.recv(received, other);
      group.send(sent, other).wait();
      receive.wait();
      EXPECT_EQ(received.sum().item<float>(), 4.F * static_cast<float>(other + i));
    }
  });
  // Threads launch the two directions in no common order: docs/gpu.md.
  expect_no_faults_but(Fault::order);
}

TEST_F(Collectives, ThatDoNotWaitForTheCallersStreamAreReported) {
  run_ranks(
      2,
      [](Group group, c10::Device device) {
        const c10::StreamGuard on(new_stream(device));
        auto values = at::ones({100}, device) * 2;
        group.all_reduce(values).wait();
      },
      Omission::wait_for_caller);
  expect_fault(Fault::race, "'all_reduce Float x 100", "'mul'");
}

}  // namespace
