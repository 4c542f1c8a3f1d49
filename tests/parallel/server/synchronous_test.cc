// Synchronous training with parameter servers is DistributedDataParallel, bit for bit.
#include "parallel/problems.h"
#include "parallel/server/support.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>

namespace lockstep {
namespace {

using namespace test;

constexpr int steps = 4;

// Returns the result of DistributedDataParallel with ranks as threads; on `shm` the bits are the
// same (tests/parallel/data/exactness_test.cc), and one case below compares with it directly.
std::vector<at::Tensor> by_ddp(const Problem& problem, int workers, const ps::MakeOptimizer& make) {
  std::vector<at::Tensor> state;
  run_as_threads(workers, [&](Group group) {
    auto model = problem.make();
    fill_parameters(*model, 5);
    DistributedDataParallel ddp(model, group, {.broadcast_buffers = false});
    std::vector<Part> trained;
    for (Part& part : ddp.named_parameters())
      if (part.tensor.requires_grad()) trained.push_back(part);
    auto optimizer = make(trained);
    for (int step = 0; step < steps; ++step) {
      ddp.zero_grad();
      problem.loss(*model, step * workers + group.rank()).backward();
      optimizer->step();
    }
    if (group.is_root()) state = state_of(*model);
  });
  return state;
}

void train(ps::Worker& worker, const Problem& problem, torch::nn::Module& model, int workers) {
  for (int step = 0; step < steps; ++step) {
    worker.zero_grad();
    problem.loss(model, step * workers + worker.number()).backward();
    worker.step();
  }
}

std::vector<at::Tensor> trained_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> list;
  for (const auto& parameter : unique_parameters(model))
    if (parameter.tensor.requires_grad()) list.push_back(parameter.tensor.detach());
  return list;
}

struct Case {
  const char* backend;
  int servers, workers;
};

class Synchronous : public testing::TestWithParam<Case> {};

TEST_P(Synchronous, EqualsDistributedDataParallelBitForBit) {
  auto [backend, servers, workers] = GetParam();
  if (std::string(backend) == "gloo" && !has(BackendKind::gloo))
    GTEST_SKIP() << "no gloo in this build";
  for (const Problem& problem : problems()) {
    auto make = made_with<optim::AdamW>(torch::optim::AdamWOptions(0.01));
    auto expected = by_ddp(problem, workers, make);
    Servers place(servers, workers, backend, {.optimizer = make});
    place.run([&, workers = workers](int number) {
      auto model = problem.make();
      fill_parameters(*model, number == 0 ? 5 : 90 + number);
      ps::Worker worker(model, place.meeting(), number);
      train(worker, problem, *model, workers);
      EXPECT_EQ(worker.steps(), steps);
      if (number == 0) expect_same_state(*model, expected, problem.name);  // its buffers too
      auto mine = trained_of(*model);
      auto names = named_tensors(*model);
      std::size_t next = 0;
      for (std::size_t i = 0; i < names.size(); ++i)
        if (next < mine.size() && names[i].tensor.is_alias_of(mine[next]))
          EXPECT_TRUE(same_bits(mine[next++], expected[i])) << problem.name << names[i].name;
      EXPECT_EQ(next, mine.size());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Places, Synchronous,
                         testing::Values(Case{"shm", 1, 1}, Case{"shm", 1, 3}, Case{"shm", 2, 2},
                                         Case{"shm", 3, 5}, Case{"gloo", 2, 3}),
                         [](const auto& info) {
                           return std::string(info.param.backend) +
                                  std::to_string(info.param.servers) + "for" +
                                  std::to_string(info.param.workers);
                         });

TEST(SynchronousServers, EqualsDistributedDataParallelOnShm) {
  const Problem problem = problems().front();
  auto make = made_with<optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  TemporaryFolder folder;
  run_group(BackendKind::shm, 3, [&](Group group) {
    auto model = problem.make();
    fill_parameters(*model, 5);
    DistributedDataParallel ddp(model, group);
    optim::SGD sgd(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < steps; ++step) {
      ddp.zero_grad();
      problem.loss(*model, step * 3 + group.rank()).backward();
      sgd.step();
    }
    if (group.is_root()) torch::save(trained_of(*model), folder.path() / "ddp");
  });
  Servers place(2, 3, "shm", {.optimizer = make});
  place.run([&](int number) {
    auto model = problem.make();
    fill_parameters(*model, 5 + number);
    ps::Worker worker(model, place.meeting(), number);
    train(worker, problem, *model, 3);
    std::vector<at::Tensor> expected;
    torch::load(expected, folder.path() / "ddp");
    auto mine = trained_of(*model);
    ASSERT_EQ(mine.size(), expected.size());
    for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(same_bits(mine[i], expected[i]));
  });
}

// If only some workers use a parameter, the gradients of the others count as zeros; a parameter
// that no worker uses is not changed.
TEST(SynchronousServers, AbsentGradientsCountAsZeros) {
  Servers place(1, 2, "shm", {.optimizer = plain_sgd(1)});
  place.run([&](int number) {
    Branches model;
    ps::Worker worker(model, place.meeting(), number);
    auto before = state_of(*model);
    model->forward(at::ones({1, 3}), number == 0 ? "a" : "ab").sum().backward();
    at::Tensor bias_of_b = model->layers[1]->bias.grad();
    worker.step();
    EXPECT_TRUE(at::allclose(model->layers[1]->bias, before[3] - 0.5));
    EXPECT_TRUE(same_bits(model->layers[2]->weight, before[4]));
    EXPECT_EQ(bias_of_b.defined(), number == 1);
  });
}

}  // namespace
}  // namespace lockstep
