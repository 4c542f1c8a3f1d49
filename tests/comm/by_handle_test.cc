// Tensors by handle: what each side has after the other has changed, freed or left.
#include "comm/child_result.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/torch/engine_test.h"
#include "sys/heap.h"
#include "sys/sanitizer.h"

#include <lockstep/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StorageImpl.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::test {
namespace {

constexpr std::int64_t many = 100'000;  // floats, far above the least that goes by handle

class ByHandle : public EngineTest {};

at::Tensor numbers(std::int64_t count, double from = 0) {
  return at::arange(from, from + static_cast<double>(count), at::kFloat);
}

// From rank 0 to rank 1; each of the two gets what it has.
at::Tensor pass(Group& group, const at::Tensor& tensor, at::IntArrayRef sizes) {
  if (group.rank() == 0) {
    group.send_by_handle(tensor, 1).wait();
    return tensor;
  }
  return group.rank() == 1 ? group.recv_by_handle(sizes, tensor.options(), 0) : at::Tensor();
}

bool copies_on_write(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->has_materializer();
}

TEST_P(ByHandle, ArrivesWithItsValuesAndSizes) {
  run([](Group group) {
    const auto square = numbers(400 * 300).reshape({400, 300});
    const std::vector<at::Tensor> all{square,
                                      square.t(),                // strided
                                      square.narrow(1, 7, 290),  // a strided part
                                      square.narrow(0, 7, 290),  // a contiguous part
                                      square.narrow(0, 7, 60),   // a small one of a large storage
                                      numbers(300).expand({400, 300}),  // expanded
                                      square.to(at::kBFloat16),
                                      square.to(at::kDouble),
                                      square > 1000,
                                      at::complex(square, square + 1),
                                      numbers(5),  // too small
                                      at::empty({0, 3}),
                                      at::full({}, 3.0)};
    for (const at::Tensor& tensor : all) {
      const at::Tensor found = pass(group, tensor, tensor.sizes());
      if (group.rank() != 1) continue;
      EXPECT_TRUE(found.is_contiguous());
      EXPECT_EQ(found.scalar_type(), tensor.scalar_type());
      EXPECT_TRUE(found.equal(tensor)) << tensor.sizes();
    }
  });
}

TEST_P(ByHandle, NeitherSideSeesWhatTheOtherWrites) {
  run([](Group group) {
    if (group.rank() > 1) return;
    const auto expected = numbers(many);
    for (const int writer : {0, 1}) {
      at::Tensor tensor = pass(group, numbers(many), {many});
      at::Tensor part = tensor.narrow(0, 10, 100);  // a view that was made before
      Group two = group;
      if (group.rank() == writer) {
        part.add_(5);
        tensor.narrow(0, 0, 5).zero_();
        tensor.data_ptr<float>()[many - 1] = -1;
      }
      at::Tensor any = at::ones({1});  // orders the write before the look
      if (group.rank() == writer)
        two.send(any, 1 - writer).wait();
      else
        two.recv(any, writer).wait();
      if (group.rank() == writer) {
        EXPECT_EQ(part[0].item<float>(), 15);
        EXPECT_EQ(tensor[3].item<float>(), 0);
        EXPECT_EQ(tensor[many - 1].item<float>(), -1);
      } else {
        EXPECT_TRUE(tensor.equal(expected)) << "writer " << writer;
      }
    }
  });
}

TEST_P(ByHandle, TheSendersTensorMayGoAtOnce) {
  run([](Group group) {
    std::vector<at::Tensor> received;
    for (int i = 0; i < 20; ++i) {
      at::Tensor mine = group.rank() == 0 ? numbers(many, i) : at::ones({1});
      auto found = pass(group, mine, {many});
      if (group.rank() == 1) received.push_back(found);
    }
    group.barrier().wait();
    // What would be written over had it been freed.
    std::vector<at::Tensor> fresh;
    for (int i = 0; i < 40; ++i) fresh.push_back(at::full({many}, -1.0));
    group.barrier().wait();
    for (std::size_t i = 0; i < received.size(); ++i)
      EXPECT_TRUE(received[i].equal(numbers(many, static_cast<double>(i)))) << i;
  });
}

TEST_P(ByHandle, OutlivesTheGroups) {
  run([&](Group group) {
    if (group.rank() > 1) return;
    auto tensor = pass(group, numbers(many, 3), {many});
    group = Group();
    for (int i = 0; i < 10; ++i) (void)at::full({many}, -1.0);
    EXPECT_TRUE(tensor.equal(numbers(many, 3)));
  });
}

// Engines differ in whether a tensor is copied; a graph cannot tell.
TEST_P(ByHandle, IsAnOrdinaryLeaf) {
  run([](Group group) {
    if (group.rank() > 1) return;
    auto tensor = pass(group, numbers(many, -many / 2.0), {many});
    if (group.rank() == 0) return;
    auto leaf = tensor.detach().requires_grad_();
    auto middle = leaf * 2;
    at::relu_(middle);
    middle.sum().backward();
    EXPECT_TRUE(leaf.grad().equal((tensor > 0) * 2.0F));
    // As the gradient of something, it is added to.
    auto weight = at::ones({many}).requires_grad_();
    for (int i = 0; i < 2; ++i) (weight * 1.0).backward(tensor);
    EXPECT_TRUE(weight.grad().equal(2 * numbers(many, -many / 2.0)));
    EXPECT_TRUE(tensor.equal(numbers(many, -many / 2.0)));
    // In place, and through a function that changes its argument.
    at::NoGradGuard no_grad;
    at::relu_(tensor);
    EXPECT_TRUE(tensor.equal(at::relu(numbers(many, -many / 2.0))));
    tensor.resize_({3});
    EXPECT_EQ(tensor.numel(), 3);
  });
}

TEST_P(ByHandle, IsCountedAndNotCopied) {
  run([](Group group) {
    if (group.rank() > 1) return;
    const bool by_handle = group.passes_handles(1 - group.rank(), 4 * many);
    const bool lie_in_arena = !sys::malloc_is_watched && !std::getenv("LOCKSTEP_ARENA_TENSORS");
    EXPECT_EQ(by_handle, lie_in_arena && group.backend() == "shm");
    EXPECT_FALSE(group.passes_handles(1 - group.rank(), 1000));
    const GroupTraffic before = group.traffic();
    auto tensor = pass(group, numbers(many), {many});
    const GroupTraffic after = group.traffic();
    const std::int64_t given = group.rank() == 0 ? 4 * many : 0;
    EXPECT_EQ(after.bytes_by_handle - before.bytes_by_handle, by_handle ? given : 0);
    EXPECT_EQ(after.bytes - before.bytes, by_handle ? given / (4 * many) * 8 : given);
    (void)(tensor.sum() + tensor.matmul(tensor) + tensor.reshape({100, -1}).t().contiguous().sum());
    EXPECT_EQ(copies_on_write(tensor), by_handle) << "what only reads does not copy";
  });
}

TEST_P(ByHandle, OtherSizesAreAMismatch) {
  if (engine() != Engine::shm) return;
  run([](Group group) {
    if (group.rank() > 1) return;
    if (group.rank() == 0) {
      group.send_by_handle(numbers(many), 1).drop();
    } else {
      EXPECT_THROW((void)group.recv_by_handle({many - 1}, at::kFloat, 0), Mismatch);
    }
  });
}

TEST_P(ByHandle, ItIsASendWhereTheArenaHasNoRoom) {
  run([](Group group) {
    if (group.rank() > 1) return;
    at::Tensor old = numbers(many);
    if (group.rank() == 0) {  // memory of the caller's own
      std::vector<float> own(many, 7);
      auto blob = at::from_blob(own.data(), {many});
      group.send_by_handle(blob, 1).wait();
      own.assign(many, 8);
    } else {
      auto found = group.recv_by_handle({many}, at::kFloat, 0);
      EXPECT_FALSE(copies_on_write(found));
      EXPECT_TRUE(found.eq(7).all().item<bool>());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Engines, ByHandle, every_engine({2, 3}), engine_test_name);

std::int64_t shared_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssShmem:")) return std::stoll(line.substr(9));
  return -1;
}

// Rings of steps: every rank gives to the next one.
TEST(ByHandleOnShm, MemoryGoesBack) {
  run_group(Engine::shm, 3, [](Group group) {
    const int next = (group.rank() + 1) % 3, previous = (group.rank() + 2) % 3;
    const auto step = [&](int i) {
      group.send_by_handle(at::full({1 << 20}, static_cast<double>(i)), next).drop();
      auto got = group.recv_by_handle({1 << 20}, at::kFloat, previous);
      EXPECT_EQ(got[i].item<float>(), static_cast<float>(i));
    };
    for (int i = 0; i < 5; ++i) step(i);
    const std::int64_t before = shared_kilobytes();
    for (int i = 0; i < 200; ++i) step(i);
    // 800 MiB were given; what may lie here are a few of 4 MiB, own and a neighbour's.
    EXPECT_LT(shared_kilobytes() - before, 64 << 10);
  });
}

TEST(ByHandleOnShm, ASenderThatIsKilledIsLostAndWhatItSentIsThere) {
  RankRendezvous place(Engine::shm, 2);
  RankProcesses ranks(2, [&](int rank) {
    Group group = place.join(rank);
    if (rank == 0) {
      group.send_by_handle(numbers(many), 1).wait();
      group.recv(at::empty({1}), 1).wait();
      ::kill(::getpid(), SIGKILL);
    }
    auto tensor = group.recv_by_handle({many}, at::kFloat, 0);
    group.send(at::ones({1}), 0).wait();
    try {
      (void)group.recv_by_handle({many}, at::kFloat, 0);
      ADD_FAILURE() << "no error";
    } catch (const PeerLost& error) {
      expect_words(error.what(), {"rank 0"});
    }
    EXPECT_TRUE(tensor.equal(numbers(many)));
    tensor.add_(1);
    EXPECT_TRUE(tensor.equal(numbers(many, 1)));
  });
  const auto results = ranks.wait(rank_limit);
  EXPECT_EQ(results[0].signal, SIGKILL);
  EXPECT_TRUE(results[1].ok()) << results[1];
}

TEST(ByHandleOnShm, AReceiverThatIsKilledKeepsNothing) {
  RankRendezvous place(Engine::shm, 3);
  RankProcesses ranks(3, [&](int rank) {
    Group group = place.join(rank);
    const int pair[]{0, 1};
    auto two = group.subset(pair);
    if (rank == 0) {
      for (int i = 0; i < 10; ++i) group.send_by_handle(at::full({1 << 20}, 1.0), 2).wait();
      EXPECT_THROW(group.recv(at::empty({1}), 2).wait(), PeerLost);
      EXPECT_THROW(group.barrier().wait(), PeerLost);
    } else if (rank == 2) {
      std::vector<at::Tensor> got;
      for (int i = 0; i < 10; ++i) got.push_back(group.recv_by_handle({1 << 20}, at::kFloat, 0));
      ::kill(::getpid(), SIGKILL);
    }
    if (rank < 2 && two) {
      if (rank == 0) {
        const std::int64_t before = shared_kilobytes();
        const bool by_handle = group.passes_handles(2, 4 << 20);
        const auto is_free = [&] { return shared_kilobytes() - before < -(30 << 10); };
        // The socket of a process that ends is closed before the process has ended.
        for (bool last = false; !last;) {
          two->send_by_handle(numbers(many), 1).wait();  // finds what is over
          sys::return_freed_memory();
          last = !by_handle || is_free();
          two->send(at::full({1}, last ? 1.0 : 0.0), 1).wait();
        }
      } else {
        for (at::Tensor last = at::zeros({1}); last.item<float>() == 0;) {
          EXPECT_TRUE(two->recv_by_handle({many}, at::kFloat, 0).equal(numbers(many)));
          two->recv(last, 0).wait();
        }
      }
    }
  });
  const auto results = ranks.wait(rank_limit);
  EXPECT_EQ(results[2].signal, SIGKILL);
  EXPECT_TRUE(results[0].ok()) << results[0];
  EXPECT_TRUE(results[1].ok()) << results[1];
}

TEST(ByHandleOnShm, AForkedChildHasNotWhatWasReceived) {
  run_group(Engine::shm, 2, [](Group group) {
    auto tensor = pass(group, numbers(many), {many});
    if (group.rank() == 1 && group.passes_handles(0, 4 * many)) {
      ::signal(SIGSEGV, SIG_DFL);
      const ChildResult child = in_child([&] { return tensor[5].item<float>() > 0 ? 0 : 1; });
      EXPECT_TRUE(WIFSIGNALED(child.status) && WTERMSIG(child.status) == SIGSEGV) << child.status;
      expect_words(child.text, {"a forked child touched a tensor of its parent"});
      const ChildResult other = in_child([&] {
        tensor = at::Tensor();  // its copy goes, and changes nothing
        return 0;
      });
      EXPECT_EQ(other.status, 0);
    }
    group.barrier().wait();
    EXPECT_TRUE(tensor.equal(numbers(many)));
  });
}

}  // namespace
}  // namespace lockstep::test
