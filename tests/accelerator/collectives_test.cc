// Collectives on the simulated accelerator, which checks NCCL's rules; groups of Lockstep keep
// them.
#include <lockstep/base/error.h>
#include <lockstep/comm/device.h>
#include <lockstep/store/memory_store.h>

#include "comm/init/backends.h"
#include "parallel/support.h"
#include "support/accelerator/communicator.h"
#include "support/accelerator/expectations.h"
#include "support/torch/staged_ranks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
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

TEST_F(Collectives, ReportARootThatDiffersBetweenRanks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int rank = 0; rank < 2; ++rank) {
    const auto backend = make_backends(device(rank))(store, rank, 2, std::chrono::seconds(20));
    std::vector<at::Tensor> values{at::ones({4}, device(rank))};
    c10d::BroadcastOptions options;
    options.rootRank = rank;
    works.push_back(backend->broadcast(values, options));
  }
  for (const auto& work : works) work->wait();
  expect_fault(Fault::order, "root 0", "root 1");
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

// The program completes here, but can hang on a device that cannot run both collectives at once.
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

// All ranks post the message from rank 0 first.
TEST_F(Collectives, OfAGroupSendMessagesInBothDirections) {
  run_ranks(2, [](Group group, c10::Device device) {
    const int other = 1 - group.rank();
    for (int i = 0; i < 3; ++i) {
      auto sent = at::full({4}, group.rank() + i, at::TensorOptions(device).dtype(at::kFloat));
      auto received = at::empty({4}, sent.options());
      if (group.rank() == 0) group.send(sent, other).wait();
      group.recv(received, other).wait();
      if (group.rank() == 1) group.send(sent, other).wait();
      EXPECT_EQ(received.sum().item<float>(), 4.F * static_cast<float>(other + i));
    }
  });
}

// Launches follow the program, so a program that breaks the rule is found.
TEST_F(Collectives, OfAGroupThatRanksPostInOppositeOrdersAreReported) {
  run_ranks(2, [](Group group, c10::Device device) {
    const int other = 1 - group.rank();
    auto received = at::empty({4}, device);
    auto receive = group.recv(received, other);
    group.send(at::ones({4}, device), other).wait();
    receive.wait();
    EXPECT_EQ(received.sum().item<float>(), 4);
  });
  expect_fault(Fault::order, "0 to 1", "1 to 0");
}

TEST_F(Collectives, OfAGroupDoNotBlockTheHost) {
  run_ranks(2, [](Group group, c10::Device device) {
    ASSERT_TRUE(has_streams(group));
    auto values = at::ones({100}, device);
    group.barrier().wait();
    const int before = Machine::get().counts(group.rank()).all_synchronizations();
    for (int i = 0; i < 10; ++i) {
      group.all_reduce(values).wait();
      values.mul_(0.5);
    }
    auto parts = at::empty({200}, device);
    group.all_gather(parts, values).wait();
    EXPECT_EQ(Machine::get().counts(group.rank()).all_synchronizations(), before);
    EXPECT_EQ(parts.sum().item<float>(), 200);
  });
}

TEST_F(Collectives, OfAGroupAreDoneWhenTheHostHasWaited) {
  run_ranks(2, [](Group group, c10::Device device) {
    auto values = at::ones({100}, device);
    auto work = group.all_reduce(values);
    work.wait();
    work.synchronize();
    EXPECT_TRUE(work.done());
    work.wait();
    work.synchronize();
    EXPECT_EQ(values.sum().item<float>(), 200);
  });
}

// The host has waited, so streams need not wait.
TEST_F(Collectives, OfAGroupAreThereForEveryStreamOnceTheHostHasWaited) {
  run_ranks(2, [](Group group, c10::Device device) {
    for (int i = 0; i < 5; ++i) {
      auto values = at::ones({100}, device);
      group.all_reduce(values).synchronize();
      const c10::StreamGuard on(new_stream(device));
      EXPECT_EQ(values.sum().item<float>(), 200);
    }
  });
}

// The tensor's memory is not reused while the call is in flight, although only another stream has
// waited for the call.
TEST_F(Collectives, OfAGroupKeepTensorsThatAnotherStreamWaitsFor) {
  run_ranks(2, [](Group group, c10::Device device) {
    for (int i = 0; i < 5; ++i) {
      auto values = at::ones({1000}, device);
      auto work = group.all_reduce(values);
      {
        const c10::StreamGuard on(new_stream(device));
        work.wait();
      }
      values = at::Tensor();
      const auto next = at::zeros({1000}, device);  // on the stream that has not waited
      EXPECT_EQ(next.sum().item<float>(), 0);
      work.synchronize();
    }
  });
}

// 257 is no bfloat16: a backend that rounds at every addition never leaves 256.
TEST_F(Collectives, OfAGroupSumInTheDtypeUnlessFloatSumsAreAsked) {
  for (const bool float_sums : {false, true}) {
    const auto store = std::make_shared<MemoryStore>();
    run_ranks(3, [&](const Group& world, c10::Device device) {
      const BackendOptions options{.c10d = make_backends(device),
                                   .c10d_streams = true,
                                   .float_sums = float_sums,
                                   .device = device};
      Group group(make_backend("sim", store, world.rank(), 3, options), "sums",
                  std::chrono::seconds(20));
      const auto own = [&](at::ScalarType dtype, float first, float others) {
        const float value = group.rank() == 0 ? first : others;
        return at::full({1000}, value, at::TensorOptions(device).dtype(dtype));
      };
      const auto sum = own(at::kBFloat16, 256, 1), on_root = own(at::kBFloat16, 256, 1);
      group.all_reduce(sum).wait();
      group.reduce(on_root).wait();
      EXPECT_EQ(sum.max().item<float>(), float_sums ? 258 : 256);
      if (group.is_root()) EXPECT_EQ(on_root.max().item<float>(), float_sums ? 258 : 256);
      const auto mean = own(at::kHalf, 30000, 30000);  // three of them are more than a half holds
      group.all_reduce(mean, Op::average).wait();
      EXPECT_EQ(mean.max().item<float>(), 30000);
    });
  }
}

// A thread that saves during training has such a group.
TEST_F(Collectives, OfTheGroupInHostMemoryRunOnAnotherThread) {
  run_ranks(2, [](Group group, c10::Device device) {
    Group on_host = host_memory_group(group);
    ASSERT_FALSE(has_streams(on_host));
    EXPECT_EQ(on_host.rank(), group.rank());
    const auto refusal = test::message_of<InvalidArgument>(
        [&] { on_host.all_reduce(at::ones({1}, device)).wait(); });
    EXPECT_NE(refusal.find("takes tensors in the CPU's memory"), std::string::npos) << refusal;
    std::jthread other([&on_host] {
      for (int i = 0; i < 20; ++i) {
        const auto values = at::ones({1000});
        on_host.all_reduce(values).wait();
        EXPECT_EQ(values.sum().item<float>(), 2000);
      }
    });
    auto values = at::ones({1000}, device);
    for (int i = 0; i < 10; ++i) group.all_reduce(values).wait();
    EXPECT_EQ(values.max().item<float>(), 1024);
  });
}

// A tensor may be freed, or used on another stream, before the device has used it.
TEST_F(Collectives, OfAGroupKeepTheirTensors) {
  run_ranks(2, [](Group group, c10::Device device) {
    for (int i = 0; i < 20; ++i) {
      group.all_reduce(at::full({1000}, 3, device)).drop();
      const c10::StreamGuard on(new_stream(device));
      auto sum = at::ones({1000}, device);
      group.all_reduce(sum).wait();
      auto next = at::zeros({1000}, device);
      EXPECT_EQ(sum.sum().item<float>(), 2000);
    }
  });
}

TEST_F(Collectives, OfAGroupExchangeUnevenParts) {
  run_ranks(2, [](Group group, c10::Device device) {
    const std::vector<std::int64_t> sent = {1, 2}, received = {1 + group.rank(), 1 + group.rank()};
    auto input = at::arange(3, at::TensorOptions(device).dtype(at::kFloat)) + 10 * group.rank();
    auto output = at::empty({2 + 2 * group.rank()}, input.options());
    group.all_to_all(output, input, received, sent).wait();
    EXPECT_EQ(output.sum().item<float>(), group.rank() == 0 ? 10 : 26);
  });
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

TEST_F(Collectives, WhoseWaitIsForgottenAreReported) {
  run_ranks(2, [](Group group, c10::Device device) {
    auto values = at::ones({100}, device);
    group.all_reduce(values).drop();
    values.mul_(2);
  });
  expect_fault(Fault::race, "'all_reduce Float x 100", "'mul");
}

// The errors of a rank if the other rank does not take part.
class FailedCollectives : public Collectives {
 protected:
  // Expects the error of rank 0 in an all_reduce with a deadline of `timeout`, and in the next
  // call, while rank 1 does something else.
  static void expect_error(const std::string& text, Duration timeout,
                           const std::function<void(Group&, c10::Device)>& rank_1) {
    run_ranks(2, [&](Group group, c10::Device device) {
      auto values = at::ones({100}, device);
      group.all_reduce(values).wait();
      if (group.rank() == 1) return rank_1(group, device);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 1 reports first
      const auto error = test::message_of<Error>([&] {
        auto work = group.all_reduce(values, Op::sum, {.timeout = timeout});
        work.wait();
        values.mul_(0.5);  // uses the outputs
        work.synchronize();
      });
      EXPECT_NE(error.find(text), std::string::npos) << error;
      const auto later = test::message_of<Error>([&] { group.all_reduce(values).wait(); });
      EXPECT_NE(later.find(text), std::string::npos) << later;
    });
    (void)Machine::get().take_reports();  // calls that differ or are missing
  }
};

TEST_F(FailedCollectives, EndAtTheirDeadline) {
  expect_error("rank 1 never called all_reduce #2", std::chrono::milliseconds(300),
               [](Group& group, c10::Device) {
                 (void)test::message_of<Error>([&] {
                   for (;;)
                     group.send(at::ones({1}), 0, {.timeout = std::chrono::seconds(3)}).wait();
                 });
               });
}

TEST_F(FailedCollectives, NameTheRankThatLeft) {
  expect_error("rank 1 of 2", std::chrono::seconds(1), [](Group&, c10::Device) {});
}

TEST_F(FailedCollectives, NameTheCallThatDiffers) {
  expect_error("broadcast #2", std::chrono::seconds(15), [](Group& group, c10::Device device) {
    (void)test::message_of<Error>([&] { group.broadcast(at::ones({100}, device)).synchronize(); });
  });
}

TEST_F(FailedCollectives, EndByAbort) {
  expect_error("rank 1 gives up", std::chrono::seconds(15),
               [](Group& group, c10::Device) { group.abort("rank 1 gives up"); });
}

// Groups of a backend that moves host memory; the ranks share a device.
class Staged : public AcceleratorTest {};

TEST_F(Staged, OutputsComeAfterWhatTheirMemoryWasGivenBeforeThePost) {
  test::run_staged(2, [](Group group) {
    auto values = at::ones({1000}, device(0));
    auto received = at::empty({1000}, device(0));
    for (int i = 0; i < 3; ++i) {
      group.all_reduce(values).wait();
      Work work;
      c10::Event summed(device(0).type());
      summed.record(current_stream(device(0)));
      {
        const c10::StreamGuard on(new_stream(device(0)));
        current_stream(device(0)).wait(summed);
        received.fill_(7);
        work = group.rank() == 0 ? group.send(values, 1) : group.recv(received, 0);
      }
      work.wait();
      if (group.rank() == 1) EXPECT_TRUE(received.eq(values).all().item<bool>());
    }
  });
}

TEST_F(Staged, MemoryOfADroppedOutputIsNotReusedBeforeItsCopy) {
  test::run_staged(2, [](Group group) {
    for (int i = 0; i < 3; ++i) {
      (void)group.all_reduce(at::ones({1000}, device(0)));  // neither it nor its Work is kept
      const auto values = at::ones({10}, device(0));
      Work last = group.all_reduce(values);
      {
        const c10::StreamGuard on(new_stream(device(0)));
        last.wait();  // copies both outputs back, on this stream
      }
      EXPECT_TRUE(at::zeros({1000}, device(0)).eq(0).all().item<bool>());
    }
  });
}

}  // namespace
