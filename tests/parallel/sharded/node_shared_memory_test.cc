// Node-shared storage: the location and amount of its memory, and the error if ranks share no
// memory.
#include "parallel/sharded/node_shared.h"
#include "support/sanitizers.h"
#include "sys/heap.h"

#include <lockstep/mesh/mesh.h>

#include <csignal>
#include <fstream>

namespace lockstep {
namespace {

using namespace test;

TEST(NodeSharedStorage, IsTheSameMemoryOnEveryRank) {
  for (BackendKind backend : {BackendKind::local, BackendKind::shm})
    run_group(backend, 3, [](Group group) {
      Pair pair(group, shared());
      auto scope = pair.sharded->unsharded();
      float* data = pair.layer(0).weight.data_ptr<float>();
      group.barrier().wait();
      if (group.rank() == 1) data[2] = 7;  // bypasses the rules to see where the memory is
      group.barrier().wait();
      EXPECT_EQ(pair.layer(0).weight.data_ptr<float>()[2], 7);
      group.barrier().wait();
    });
}

// In mixed precision, the shared memory holds casts of the float shards.
TEST(NodeSharedStorage, PublishesACastInMixedPrecision) {
  for (ShardLevel level : all_levels)
    for (int ranks : {1, 3})
      run_as_threads(ranks, [&](Group group) {
        ShardOptions options{.level = level, .compute_dtype = at::kBFloat16};
        Pair pair(group, options), other(group, shared(options));
        auto ours = adamw()(other.sharded->parameters());
        auto expected = adamw()(pair.sharded->parameters());
        for (int step = 0; step < 4; ++step) {
          auto loss = [&](Pair& one, bool slow) {
            one.sharded->zero_grad();
            at::Tensor x = Pair::input(step).to(at::kBFloat16);
            at::Tensor middle = delayed_backward(one.layer(0).forward(x), slow);
            at::Tensor result = one.layer(1).forward(middle).square().sum();
            result.backward();
            return result.to(at::kFloat);
          };
          at::Tensor found = loss(other, group.rank() == step % ranks);
          EXPECT_EQ(bits_of(found), bits_of(loss(pair, false))) << step;
          torch::NoGradGuard no_grad;
          for (Pair* one : {&pair, &other}) {  // an evaluation before the update, a write after it
            (void)one->model->forward(Pair::input(9).to(at::kBFloat16));
            (one == &pair ? expected : ours)->step();
            one->layer(1).weight.mul_(0.75);
          }
        }
        auto values = other.sharded->state_dict();
        for (const auto& [name, value] : pair.sharded->state_dict())
          EXPECT_TRUE(same_bits(values.at(name), value)) << name;
      });
}

TEST(NodeSharedStorage, IsRefusedWhereRanksShareNoMemoryAndNothingHasChanged) {
  if (!has(BackendKind::gloo)) GTEST_SKIP() << "no Gloo in this build";
  run_group(BackendKind::gloo, 2, [](Group group) {
    torch::nn::Linear model(3, 2);
    fill_parameters(*model, 4 + group.rank());
    at::Tensor before = model->weight.detach().clone();
    auto refused = [&] { auto sharded = fully_shard(model, group, shared()); };
    expect_words(message_of<InvalidArgument>(refused),
                 {"node_shared", "backend gloo", "last axis"});
    EXPECT_TRUE(same_bits(model->weight, before));
    auto sharded = fully_shard(model, group);
    model->forward(values({1, 3}, 1)).sum().backward();
  });
}

TEST(NodeSharedStorage, OfDifferentOptionsIsAMismatch) {
  run_as_threads(2, [](Group group) {
    torch::nn::Linear model(3, 2);
    ShardOptions options = group.rank() == 0 ? ShardOptions() : shared();
    auto text = message_of<Mismatch>([&] { auto sharded = fully_shard(model, group, options); });
    expect_words(text, {"storage = private_memory", "storage = node_shared"});
  });
}

TEST(NodeSharedStorage, OnTwoAxesEachCopyIsSharedByItsRanks) {
  Problem problem = problems()[0];
  History expected = one_process(problem, adamw(), 4, 3);
  for (BackendKind backend : {BackendKind::local, BackendKind::shm})
    run_group(backend, 4, [&](Group group) {
      Mesh mesh(group, {{"copies", 2}, {"shards", 2}});
      for (ShardLevel level : all_levels)
        expect_same_history(expected, problem, mesh, shared({.level = level}), adamw());
    });
}

// An arena of 64 MB has no room for twelve handles of 12 MB each.
TEST(NodeSharedStorage, IsFreedWithItsHandle) {
  run_group(BackendKind::shm, 2, [](Group group) {
    for (int round = 0; round < 12; ++round) {
      torch::nn::Linear model(torch::nn::LinearOptions(1024, 1024).bias(false));
      ShardOptions options = shared();
      options.reduce_in_step = true;
      auto sharded = fully_shard(model, group, options);
      model->forward(at::ones({1, 1024})).sum().backward();
      group.barrier().wait();
    }
  });
}

// The proportional set size of this process in bytes: memory that N processes map counts 1/N.
double proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;)
    if (word == "Pss:") {
      double kilobytes = 0;
      file >> kilobytes;
      return kilobytes * 1024;
    }
  return 0;
}

// The total of four processes: parameters once, each rank's shard of the optimizer's state, and the
// buffers of a small model.
TEST(NodeSharedStorage, FourRanksHoldOneReplica) {
  if (under_sanitizer) GTEST_SKIP() << "a sanitizer needs more memory";
  run_group(BackendKind::shm, 4, [](Group group) {
    at::set_num_threads(1);
    constexpr std::int64_t width = 768, layers = 10;
    double before = 0, after = 0;
    // The small model comes first: it measures the base usage of LibTorch and the allocator.
    for (std::int64_t size : {std::int64_t{16}, width}) {
      torch::nn::Sequential model;
      for (int i = 0; i < layers; ++i)
        model->push_back(torch::nn::Linear(torch::nn::LinearOptions(size, size).bias(false)));
      auto sharded = fully_shard(model, group, shared({.units = {"*"}}));
      optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(1e-3));
      for (int step = 0; step < 2; ++step) {
        model->forward(at::ones({1, size})).sum().backward();
        adamw.step();
        sharded.zero_grad();
      }
      sharded.free_buffers();
      sys::return_freed_memory();
      group.barrier().wait();
      before = std::exchange(after, proportional_bytes());
      group.barrier().wait();
    }
    at::Tensor all = at::full({1}, after - before, at::kDouble);
    group.all_reduce(all).wait();
    double replica = 12.0 * layers * width * width;  // parameters and the state of AdamW
    double megabyte = 1 << 20;
    EXPECT_LT(all.item<double>(), 1.1 * replica)
        << all.item<double>() / megabyte << " MB; a replica has " << replica / megabyte;
    EXPECT_GT(all.item<double>(), 0.9 * replica);
  });
}

// Named memory would outlive its processes.
int named_shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("/dev/shm/") != std::string::npos) ++count;
  return count;
}

TEST(NodeSharedStorage, LeavesNothingBehindWhenARankIsKilled) {
  RankRendezvous place(BackendKind::shm, 3);
  RankProcesses ranks(3, [&](int rank) {
    Pair pair(place.join(rank), shared());
    auto adamw = our_adamw()(pair.sharded->parameters());
    EXPECT_EQ(named_shared_mappings(), 0);
    if (rank == 1) ::raise(SIGKILL);
    auto train = [&] {
      for (int step = 0; step < 1000; ++step) {
        loss_of(pair.model, step).backward();
        adamw->step();
        pair.sharded->zero_grad();
      }
    };
    EXPECT_THROW(train(), PeerLost);
  });
  auto results = ranks.wait(std::chrono::seconds(20));
  EXPECT_EQ(results[1].signal, SIGKILL);
  EXPECT_TRUE(results[0].ok() && results[2].ok());
}

}  // namespace
}  // namespace lockstep
