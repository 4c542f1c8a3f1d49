#include "parallel/data/hook_support.h"

#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>

#include <cmath>

namespace lockstep {
namespace {

using namespace test;

const std::vector<std::vector<std::int64_t>> power_shapes = {{12, 10}, {9}, {7, 2, 5}};

DistributedDataParallelOptions power_options(std::shared_ptr<CommunicationHook> hook) {
  return {.bucket_bytes = 200, .first_bucket_bytes = 200, .hook = std::move(hook)};
}

// The paper's algorithm for one matrix, with the gradients of all ranks in one process.
struct PowerReference {
  at::Tensor q;
  std::vector<at::Tensor> errors;  // one per rank

  at::Tensor step(const std::vector<at::Tensor>& gradients, bool feedback, bool warm,
                  const at::Tensor& first_q) {
    auto ranks = static_cast<double>(gradients.size());
    std::vector<at::Tensor> matrices;
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      at::Tensor matrix = gradients[rank].reshape({gradients[rank].size(0), -1});
      matrices.push_back(errors.empty() || !feedback ? matrix : matrix + errors[rank]);
    }
    at::Tensor begin = warm && q.defined() ? q : first_q;
    at::Tensor p = at::zeros({matrices[0].size(0), begin.size(1)}, begin.options());
    for (const auto& matrix : matrices) p += at::mm(matrix, begin);
    p = std::get<0>(at::linalg_qr(p / ranks));
    q = at::zeros_like(begin);
    for (const auto& matrix : matrices) q += at::mm(matrix.t(), p) / ranks;
    at::Tensor product = at::mm(p, q.t());
    errors.clear();
    for (const auto& matrix : matrices) errors.push_back(matrix - product);
    return product.reshape(gradients[0].sizes());
  }
};

class PowerSgd : public testing::TestWithParam<BackendRanks> {};

TEST_P(PowerSgd, IsTheAlgorithmOfThePaper) {
  for (std::int64_t rank : {1, 2})
    run_group(GetParam().backend, GetParam().size, [&](Group group) {
      Table table(power_shapes, at::kDouble);
      auto hook = power_sgd({.rank = rank, .start_step = 2, .min_compression_rate = 1});
      DistributedDataParallel ddp(table, group, power_options(hook));
      at::Tensor q0 = values({10, rank}, 3).to(at::kDouble);
      hook->load_state({{"step", at::zeros({1}, at::kLong)}, {"q.w0", q0}, {"q.w2", q0}});
      std::vector<PowerReference> references(power_shapes.size());
      for (int step = 0; step < 6; ++step) {
        ddp.zero_grad();
        backward(ddp, *table, step);
        for (std::size_t i = 0; i < power_shapes.size(); ++i) {
          std::vector<at::Tensor> gradients;
          for (int other = 0; other < group.size(); ++other)
            gradients.push_back(gradients_for(*table, other, step)[i]);
          bool exact = step < 2 || i == 1;
          at::Tensor expected = exact ? tree_sum(gradients, 0, gradients.size()) / group.size()
                                      : references[i].step(gradients, true, true, q0);
          EXPECT_LT(largest_difference(table->weights[i].grad(), expected), 1e-12)
              << "step " << step << " parameter " << i;
        }
      }
    });
}

// If the compressed rank is that of the gradients, the compression is lossless.
TEST_P(PowerSgd, AGradientOfThatRankTravelsWhole) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    for (bool warm : {true, false}) {
      Table table({{12, 10}}, at::kDouble);
      auto hook =
          power_sgd({.rank = 2, .start_step = 0, .min_compression_rate = 1, .warm_start = warm});
      DistributedDataParallel ddp(table, group, power_options(hook));
      auto gradient = [](int rank, int step) {  // with the same columns on all ranks
        at::Tensor columns = values({12, 2}, 5).to(at::kDouble);
        return at::mm(columns, values({2, 10}, 10 * step + rank).to(at::kDouble));
      };
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        table->loss({gradient(group.rank(), step)}).backward();
        at::Tensor sum = at::zeros({12, 10}, at::kDouble);
        for (int rank = 0; rank < group.size(); ++rank) sum += gradient(rank, step);
        EXPECT_LT(largest_difference(table->weights[0].grad(), sum / group.size()), 1e-12);
        EXPECT_LT(hook->state().at("error.w0").abs().max().item<double>(), 2.0);
      }
    }
  });
}

TEST_P(PowerSgd, SendsRTimesNPlusMNumbers) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    if (group.size() == 1) return;
    constexpr std::int64_t n = 64, m = 48, r = 3;
    Table table({{n, m}}, at::kFloat);
    auto hook = power_sgd({.rank = r, .start_step = 1});
    DistributedDataParallel ddp(table, group, power_options(hook));
    auto bytes = [&](int step) {
      std::int64_t before = group.traffic().bytes;
      backward(ddp, *table, step);
      return group.traffic().bytes - before - bytes_of_sum(group, 3, 4);  // without the status
    };
    backward(ddp, *table, 0);  // exact, and records the order of readiness
    // of the only parameter, in the second step
    const std::int64_t values = 8 * (group.size() - 1);
    std::int64_t compressed = bytes(1) - values;
    EXPECT_EQ(compressed, bytes_of_sum(group, r * n, 4) + bytes_of_sum(group, r * m, 4));
    EXPECT_EQ(bytes(2), compressed);
  });
}

TEST_P(PowerSgd, ComposesWithBf16) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    if (group.size() == 1) return;
    Table table({{64, 48}}, at::kFloat);
    auto hook = bf16_compression(power_sgd({.rank = 3, .start_step = 0}));
    DistributedDataParallel ddp(table, group, power_options(hook));
    backward(ddp, *table, 0);
    std::int64_t before = group.traffic().bytes;
    backward(ddp, *table, 1);
    const std::int64_t status = bytes_of_sum(group, 3, 4);
    const std::int64_t values = 8 * (group.size() - 1);  // of the only parameter, to compare it
    EXPECT_EQ(group.traffic().bytes - before - status - values,
              bytes_of_sum(group, 3 * 64, 2) + bytes_of_sum(group, 3 * 48, 2));
    at::Tensor first = table->weights[0].grad().clone();
    group.broadcast(first).wait();
    EXPECT_TRUE(same_bits(first, table->weights[0].grad()));
  });
}

// Least squares: with error feedback, compressed descent converges to the same result as exact
// descent.
TEST_P(PowerSgd, ErrorFeedbackTrainsToTheSamePlace) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    at::Tensor x = values({20, 8}, group.rank()).to(at::kDouble);
    at::Tensor y = at::mm(x, values({8, 6}, 77).to(at::kDouble));
    auto train = [&](std::shared_ptr<CommunicationHook> hook) {
      Table table({{8, 6}}, at::kDouble);
      DistributedDataParallel ddp(table, group, power_options(std::move(hook)));
      torch::optim::SGD sgd(ddp.parameters(), 0.1);
      for (int step = 0; step < 400; ++step) {
        ddp.zero_grad();
        (at::mm(x, table->weights[0]) - y).square().sum(1).mean().backward();
        sgd.step();
      }
      return largest_difference(table->weights[0].detach(), values({8, 6}, 77).to(at::kDouble));
    };
    double exact = train(nullptr);
    double compressed = train(power_sgd({.rank = 1, .start_step = 0, .min_compression_rate = 1}));
    EXPECT_LT(compressed, exact + 0.02);
  });
}

TEST_P(PowerSgd, GoesOnFromItsState) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    PowerSgdOptions options{.rank = 2, .start_step = 1, .min_compression_rate = 1};
    Table table(power_shapes, at::kFloat), second(power_shapes, at::kFloat);
    auto hook = power_sgd(options), resumed = power_sgd(options);
    DistributedDataParallel ddp(table, group, power_options(hook));
    for (int step = 0; step < 3; ++step) ddp.zero_grad(), backward(ddp, *table, step);
    DistributedDataParallel other(second, group, power_options(resumed));
    resumed->load_state(hook->state());
    for (int step = 3; step < 6; ++step) {
      ddp.zero_grad();
      backward(ddp, *table, step);
      other.zero_grad();
      backward(other, *second, step);
      for (std::size_t i = 0; i < power_shapes.size(); ++i)
        EXPECT_TRUE(same_bits(table->weights[i].grad(), second->weights[i].grad())) << step;
    }
  });
}

TEST_P(PowerSgd, AnInfiniteGradientIsForgotten) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table({{12, 10}}, at::kFloat);
    auto hook = power_sgd({.rank = 2, .start_step = 0, .min_compression_rate = 1});
    DistributedDataParallel ddp(table, group, power_options(hook));
    for (int step = 0; step < 4; ++step) {
      ddp.zero_grad();
      at::Tensor gradient = gradients_for(*table, group.rank(), step)[0];
      if (step == 1 && group.rank() == group.size() - 1) gradient[3][4] = INFINITY;
      table->loss({gradient}).backward();
      EXPECT_EQ(at::isfinite(table->weights[0].grad()).all().item<bool>(), step != 1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, PowerSgd, testing::ValuesIn(usual_ranks()), name_of_ranks);

TEST(PowerSgdErrors, RefusesWhatMakesNoSense) {
  EXPECT_THROW((void)power_sgd({.rank = 0}), InvalidArgument);
  EXPECT_THROW((void)power_sgd({.start_step = -1}), InvalidArgument);
  EXPECT_THROW((void)power_sgd({.min_compression_rate = 0.5}), InvalidArgument);
  auto make = [](std::vector<std::vector<std::int64_t>> sizes, auto hook) {
    return message_of<InvalidArgument>([&] {
      Table table(sizes, at::kFloat);
      DistributedDataParallel ddp(table, Group(), power_options(hook));
    });
  };
  expect_contains(make(power_shapes, power_sgd({.rank = 11})),
                  "power_sgd: rank 11 is too large for every parameter: the largest, w0, is 12 x "
                  "10, and would travel as 242 numbers instead of 120");
  expect_contains(make({{5}}, power_sgd()), "no parameter has two dims");
  auto hook = power_sgd({.rank = 1, .min_compression_rate = 1});
  EXPECT_EQ(make(power_shapes, hook), "");
  expect_contains(make(power_shapes, hook), "belongs to another handle");
  expect_contains(message_of<BadInput>([&] { hook->load_state({}); }), "no step");
  auto step = at::zeros({1}, at::kLong);
  expect_contains(message_of<BadInput>([&] {
                    hook->load_state({{"step", step}, {"q.w9", step}});
                  }),
                  "unknown tensor q.w9");
  for (const char* name : {"", "x", "w0"})
    expect_contains(message_of<BadInput>([&] {
                      hook->load_state({{"step", step}, {name, step}});
                    }),
                    "unknown tensor " + std::string(name));
  for (const at::Tensor& wrong : {step - 1, at::full({1}, NAN)})
    expect_contains(message_of<BadInput>([&] {
                      hook->load_state({{"step", wrong}});
                    }),
                    "step of the state: expected an integer of at least 0, found ");
  expect_contains(message_of<BadInput>([&] {
                    hook->load_state({{"step", step}, {"q.w0", at::ones({3, 1})}});
                  }),
                  "q.w0 of the state: expected shape [10, 1], found [3, 1]");
}

}  // namespace
}  // namespace lockstep
