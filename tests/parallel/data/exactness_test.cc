// The gradients of DistributedDataParallel are bitwise equal to those of the naive version, and to
// those of one process that computes each rank's micro-batch separately, sums in the order of the
// tree and divides once.
#include "parallel/problems.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/data/naive.h>

#include <algorithm>

namespace lockstep {
namespace {

using namespace test;

// Makes `steps` steps in one process and returns the gradients of every step. Each step averages
// `ranks` micro-batches of `parts` backward() calls each.
std::vector<std::vector<at::Tensor>> one_process(const Problem& problem, int ranks, int parts,
                                                 int steps) {
  auto model = problem.make();
  fill_parameters(*model, 5);
  auto parameters = trainable(*model);
  torch::optim::SGD sgd(parameters, 0.1);
  std::vector<std::vector<at::Tensor>> of_steps;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      sgd.zero_grad();
      for (int part = 0; part < parts; ++part)
        problem.loss(*model, (step * ranks + rank) * parts + part).backward();
      of_ranks.push_back(gradients_of(parameters));
    }
    of_steps.push_back(average(of_ranks));
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = of_steps.back()[i].clone();
    sgd.step();
  }
  return of_steps;
}

void expect_equal(const std::vector<at::Tensor>& expected, DistributedDataParallel& ddp,
                  const std::string& where) {
  std::size_t i = 0;
  for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
       ddp.named_parameters()) {
    if (!tensor.requires_grad()) continue;
    EXPECT_TRUE(same_bits(tensor.grad(), expected[i])) << where << ", " << name;
    ++i;
  }
}

class Exactness : public testing::TestWithParam<BackendRanks> {};

// Gradients in buckets only, some in place, and all in place.
class ExactInPlace : public testing::TestWithParam<std::tuple<BackendRanks, std::int64_t>> {};

TEST_P(ExactInPlace, EqualsOneProcessBitForBit) {
  const auto& [ranks, bytes] = GetParam();
  const std::int64_t in_place_bytes = bytes;
  constexpr int steps = 3;
  for (const Problem& problem : problems()) {
    for (int parts : {1, 2}) {
      at::set_num_threads(1);
      auto expected = one_process(problem, ranks.size, parts, steps);
      run_group(ranks.backend, ranks.size, [&](Group group) {
        auto model = problem.make();
        fill_parameters(*model, group.is_root() ? 5 : 99);
        DistributedDataParallel ddp(
            model, group,
            {.bucket_bytes = 2000, .first_bucket_bytes = 300, .in_place_bytes = in_place_bytes});
        torch::optim::SGD sgd(ddp.parameters(), 0.1);
        for (int step = 0; step < steps; ++step) {
          ddp.zero_grad();
          int first = (step * group.size() + group.rank()) * parts;
          for (int part = 0; part + 1 < parts; ++part) {
            auto scope = ddp.no_sync();
            problem.loss(*model, first + part).backward();
          }
          problem.loss(*model, first + parts - 1).backward();
          expect_equal(expected[step], ddp, problem.name + ", step " + std::to_string(step));
          sgd.step();
        }
      });
    }
  }
}

TEST_P(Exactness, EqualsTheNaiveVersion) {
  Problem problem = problems()[2];
  run_group(GetParam().backend, GetParam().size, [&](Group group) {
    auto plain = problem.make(), model = problem.make();
    fill_parameters(*plain, 3 + group.rank());
    fill_parameters(*model, 3 + group.rank());
    naive::broadcast_parameters(*plain, group);
    DistributedDataParallel ddp(model, group);
    problem.loss(*plain, group.rank()).backward();
    naive::average_gradients(*plain, group);
    problem.loss(*model, group.rank()).backward();
    expect_equal(gradients_of(trainable(*plain)), ddp, "naive");
  });
}

TEST_P(Exactness, KeepsTheSignOfZero) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    torch::nn::Linear model(3, 1);
    DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      (model->weight * -0.0F + model->bias * 0).sum().backward();
      EXPECT_TRUE(same_bits(model->weight.grad(), at::full({1, 3}, -0.0F))) << "step " << step;
    }
  });
}

TEST_P(Exactness, ClearedGradientsAccumulateAsInOneProcess) {
  Problem problem = problems()[0];
  std::vector<std::vector<at::Tensor>> of_ranks;
  for (int rank = 0; rank < GetParam().size; ++rank) {
    auto model = problem.make();
    fill_parameters(*model, 5);
    for (auto& parameter : model->parameters())
      parameter.mutable_grad() = at::zeros_like(parameter);
    problem.loss(*model, rank).backward();
    of_ranks.push_back(gradients_of(model->parameters()));
  }
  auto expected = average(of_ranks);
  run_group(GetParam().backend, GetParam().size, [&](Group group) {
    auto model = problem.make();
    fill_parameters(*model, 5);
    DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 3; ++step) {
      problem.loss(*model, step == 0 ? 7 : group.rank()).backward();
      if (step > 0) expect_equal(expected, ddp, "step " + std::to_string(step));
      ddp.zero_grad(/*set_to_none=*/false);
      EXPECT_TRUE(model->parameters()[0].grad().defined());
      EXPECT_EQ(model->parameters()[0].grad().count_nonzero().item<std::int64_t>(), 0);
    }
  });
}

TEST_P(Exactness, ReducedPrecisionIsAveragedInFloatAndRoundedOnce) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < GetParam().size; ++rank)
      of_ranks.push_back({values({7, 3}, rank).to(dtype)});
    at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    std::vector<std::vector<at::Tensor>> widened;
    for (auto& one : of_ranks) widened.push_back({one[0].to(wide)});
    at::Tensor expected = average(widened)[0].to(dtype);
    run_group(GetParam().backend, GetParam().size, [&](Group group) {
      torch::nn::Linear model(torch::nn::LinearOptions(3, 7).bias(false));
      model->to(dtype);
      DistributedDataParallel ddp(model, group);
      (model->weight * of_ranks[group.rank()][0]).sum().backward();
      EXPECT_TRUE(same_bits(model->weight.grad(), expected)) << c10::toString(dtype);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExactInPlace,
                         testing::Combine(testing::ValuesIn(usual_ranks()),
                                          testing::Values(1 << 20, 600, 1)));

INSTANTIATE_TEST_SUITE_P(All, Exactness, testing::ValuesIn(usual_ranks()), name_of_ranks);

// Gloo sums in its own order: the bound is a few roundings of the largest summand.
TEST(ExactnessOnGloo, IsWithinAFewRoundings) {
  auto all = backends();
  if (std::find(all.begin(), all.end(), BackendKind::gloo) == all.end())
    GTEST_SKIP() << "this build has no Gloo";
  for (int size : {2, 3}) {
    Problem problem = problems()[1];
    auto expected = one_process(problem, size, 1, 1);
    run_group(BackendKind::gloo, size, [&](Group group) {
      auto model = problem.make();
      fill_parameters(*model, group.is_root() ? 5 : 99);
      DistributedDataParallel ddp(model, group, {.bucket_bytes = 2000, .first_bucket_bytes = 300});
      problem.loss(*model, group.rank()).backward();
      std::vector<at::Tensor> gradients = gradients_of(trainable(*model));
      for (std::size_t i = 0; i < gradients.size(); ++i)
        EXPECT_TRUE(at::allclose(gradients[i], expected[0][i], 1e-6, 1e-7))
            << size << " ranks, parameter " << i;
    });
  }
}

}  // namespace
}  // namespace lockstep
