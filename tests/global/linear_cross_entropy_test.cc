// Compares the fused layer and loss with the naive version; also losses on sharded classes.
#include <lockstep/base/error.h>
#include <lockstep/global/linear_cross_entropy.h>

#include "support/messages.h"
#include "support/torch/allocations.h"
#include "support/torch/backend_test.h"
#include "tests_of_global.h"

#include <torch/torch.h>

namespace lockstep {
namespace {

using test::mesh_of_ranks;

struct LossCase {
  explicit LossCase(at::ScalarType dtype = at::kDouble, std::int64_t rows = 11,
                    std::int64_t classes = 7, std::int64_t width = 5) {
    const auto wave = [&](std::int64_t count, double step) {
      return (at::arange(count, at::kDouble) * step).sin();
    };
    input = wave(rows * width, 0.7).view({rows, width}).to(dtype).set_requires_grad(true);
    weight = (wave(classes * width, 1.3) * 2).view({classes, width}).to(dtype);
    weight.set_requires_grad(true);
    target = (at::arange(rows, at::kLong) * 5 + 2) % classes;
    target[1] = -1;
  }
  at::Tensor input, weight, target;
};

at::Tensor naive_loss(const LossCase& of) {
  const at::Tensor logits = at::linear(of.input, of.weight);
  return at::cross_entropy_loss(logits.to(at::promote_types(logits.scalar_type(), at::kFloat)),
                                of.target, {}, at::Reduction::Mean, -1);
}

at::Tensor fused_loss(const LossCase& of, std::int64_t rows = 0) {
  return linear_cross_entropy(of.input, of.weight, of.target, {.ignore_index = -1, .rows = rows});
}

TEST(LinearCrossEntropy, IsTheNaiveOneAtAnyNumberOfRows) {
  for (const std::int64_t rows : {0, 1, 3, 11, 100}) {
    LossCase found, expected;
    at::Tensor loss = fused_loss(found, rows), plain = naive_loss(expected);
    EXPECT_TRUE(at::allclose(loss, plain, 1e-13));
    (loss * 3).backward();
    (plain * 3).backward();
    EXPECT_TRUE(at::allclose(found.input.grad(), expected.input.grad(), 1e-12, 1e-14)) << rows;
    EXPECT_TRUE(at::allclose(found.weight.grad(), expected.weight.grad(), 1e-12, 1e-14)) << rows;
  }
}

TEST(LinearCrossEntropy, OfSmallFormatsIsComputedInFloat) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    LossCase found(dtype), truth;
    truth.input = found.input.detach().to(at::kDouble).set_requires_grad(true);
    truth.weight = found.weight.detach().to(at::kDouble).set_requires_grad(true);
    at::Tensor loss = fused_loss(found, 4), plain = naive_loss(truth);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    const double tolerance = dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 4e-3 : 3e-2;
    EXPECT_NEAR(loss.item<double>(), plain.item<double>(), tolerance * plain.item<double>());
    loss.backward();
    plain.backward();
    EXPECT_EQ(found.weight.grad().scalar_type(), dtype);
    EXPECT_LE(
        (found.weight.grad().to(at::kDouble) - truth.weight.grad()).abs().max().item<double>(),
        tolerance);
    EXPECT_LE((found.input.grad().to(at::kDouble) - truth.input.grad()).abs().max().item<double>(),
              tolerance);
  }
}

double relative_error(const at::Tensor& found, const at::Tensor& truth) {
  return ((found.to(at::kFloat) - truth).norm() / truth.norm()).item<double>();
}

// In float16, a probability divided by the number of targets underflows, and GradScaler's initial
// scale overflows.
TEST(LinearCrossEntropy, Float16KeepsTheGradientsOfManyClasses) {
  constexpr std::int64_t many = 4096;
  constexpr float scale = 65536;
  LossCase found(at::kHalf, many, many), truth(at::kFloat, many, many);
  {
    at::NoGradGuard no_grad;
    found.input.abs_();
    truth.input.copy_(found.input);
    truth.weight.copy_(found.weight);
  }
  naive_loss(truth).backward();
  at::Tensor loss = fused_loss(found);
  (loss * scale).backward();
  ASSERT_EQ(found.weight.grad().scalar_type(), at::kHalf);
  ASSERT_EQ(found.input.grad().scalar_type(), at::kHalf);
  EXPECT_LE(relative_error(found.weight.grad().to(at::kFloat) / scale, truth.weight.grad()), 5e-3);
  EXPECT_LE(relative_error(found.input.grad().to(at::kFloat) / scale, truth.input.grad()), 5e-3);
}

TEST(LinearCrossEntropy, NothingToPredictIsNanWithoutGradient) {
  LossCase of;
  of.target.fill_(-1);
  at::Tensor loss = fused_loss(of);
  EXPECT_TRUE(std::isnan(loss.item<double>()));
  loss.backward();
  EXPECT_EQ(of.weight.grad().count_nonzero().item<std::int64_t>(), 0);
}

TEST(LinearCrossEntropy, WhatDoesNotFitIsOneLine) {
  LossCase of;
  const auto refused = [](const std::function<at::Tensor()>& call) -> std::string {
    try {
      (void)call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(refused([&] { return linear_cross_entropy(of.input, of.input, of.target); }),
            "linear_cross_entropy: expected targets from 0 to 10, or -100 to ignore one, found -1");
  EXPECT_EQ(refused([&] { return linear_cross_entropy(of.input, of.weight.t(), of.target); }),
            "linear_cross_entropy: expected an input [..., width] and a weight [classes, width], "
            "found [11, 5] and [5, 7]");
  EXPECT_EQ(refused([&] { return linear_cross_entropy(of.input, of.weight, of.target[0]); }),
            "linear_cross_entropy: expected int64 targets of sizes [11], found Long of []");
  at::Tensor loss = fused_loss(of);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(refused([&] {
              loss.backward();
              return loss;
            }),
            "linear_cross_entropy: expected one backward(), found a second one of the same loss");
}

// The operation keeps some rows of logits instead of three copies of all logits.
TEST(LinearCrossEntropy, HoldsTheLogitsOfSomeRowsOnly) {
  constexpr std::int64_t rows = 512, classes = 4096, width = 16, at_once = 32;
  LossCase of(at::kFloat, rows, classes, width);
  const auto peak_of = [&](const std::function<at::Tensor()>& loss) {
    of.input.mutable_grad().reset();
    of.weight.mutable_grad().reset();
    const test::Allocations allocations;
    loss().backward();
    return allocations.peak();
  };
  const std::int64_t own = peak_of([&] { return fused_loss(of, at_once); });
  const std::int64_t plain = peak_of([&] { return naive_loss(of); });
  const std::int64_t gradients = (rows + classes) * width * 4, logits = rows * classes * 4;
  const std::int64_t some = at_once * classes * 4;
  EXPECT_LE(own, gradients + some + some / 4 + (64 << 10));
  EXPECT_GE(plain, 2 * logits);
  std::cout << "peak of " << rows << " rows and " << classes << " classes: fused " << own
            << " bytes, naive " << plain << "\n";
}

class CutClasses : public test::BackendTest {};

TEST_P(CutClasses, BothLossesAreThoseOfOneProcess) {
  run([&](Group world) {
    for (const auto& shape : test::shapes_of_meshes(world.size())) {
      const Mesh mesh = mesh_of_ranks(world, shape);
      const std::size_t axes = shape.size();
      for (const bool is_fused : {false, true}) {
        LossCase expected, found;
        at::Tensor plain = naive_loss(expected);
        (plain * 3).backward();
        Placements of_weight(axes), of_rows(axes);
        of_weight.back() = Shard(0);
        if (axes > 1) of_rows.front() = Shard(0);
        LossCase global;
        global.weight = distribute(found.weight, mesh, of_weight);
        global.input = distribute(found.input, mesh, of_rows);
        global.target = distribute(found.target, mesh, of_rows);
        reset_traffic(mesh);
        at::Tensor loss = is_fused ? fused_loss(global, 4) : naive_loss(global);
        const Traffic moved = traffic(mesh);
        EXPECT_EQ(moved.all_gathers, 0) << "logits were gathered";
        EXPECT_NEAR(full_tensor(loss.detach()).item<double>(), plain.item<double>(), 1e-13);
        (loss * 3).backward();
        EXPECT_TRUE(at::allclose(found.weight.grad(), expected.weight.grad(), 1e-11, 1e-13));
        EXPECT_TRUE(at::allclose(found.input.grad(), expected.input.grad(), 1e-11, 1e-13));
      }
    }
  });
}

// Float16 gradients of sharded rows and classes, with a loss scale.
TEST_P(CutClasses, Float16IsThatOfOneProcess) {
  run([&](Group world) {
    const Mesh mesh = mesh_of_ranks(world, {world.size()});
    LossCase expected(at::kHalf, 64, 50), found(at::kHalf, 64, 50), global(at::kHalf, 64, 50);
    at::Tensor plain = fused_loss(expected);
    (plain * 1024).backward();
    for (const bool cuts_classes : {false, true}) {
      found.input.mutable_grad().reset();
      found.weight.mutable_grad().reset();
      Placements of_rows = {Shard(0)}, of_weight = {Replicate()};
      if (cuts_classes) std::swap(of_rows, of_weight);
      global.weight = distribute(found.weight, mesh, of_weight);
      global.input = distribute(found.input, mesh, of_rows);
      global.target = distribute(found.target, mesh, of_rows);
      at::Tensor loss = fused_loss(global, 8);
      (loss * 1024).backward();
      for (const bool is_weight : {false, true}) {
        const auto gradient = [&](const LossCase& of) {
          return (is_weight ? of.weight : of.input).grad();
        };
        EXPECT_EQ(gradient(found).scalar_type(), at::kHalf);
        EXPECT_LE(relative_error(gradient(found), gradient(expected).to(at::kFloat)), 5e-3);
      }
    }
  });
}

// Otherwise, ranks with other rows would wait for this rank in the next collective.
TEST_P(CutClasses, ATargetThatOneRankHasAloneEndsTheOthersToo) {
  if (size() == 1) return;
  run([&](Group world) {
    const Mesh mesh = mesh_of_ranks(world, {world.size()});
    LossCase of;
    const int victim = world.size() - 1;
    of.target[-1] = 99;  // in the last rank's rows
    const at::Tensor input = distribute(of.input, mesh, {Shard(0)});
    const at::Tensor weight = distribute(of.weight, mesh, {Replicate()});
    const at::Tensor target = distribute(of.target, mesh, {Shard(0)});
    const auto call = [&] {
      (void)linear_cross_entropy(input, weight, target, {.ignore_index = -1});
    };
    if (world.rank() == victim) {
      test::expect_words(test::message_of<InvalidArgument>(call), {"targets from 0 to 6"});
    } else {
      test::expect_words(test::message_of<Aborted>(call),
                         {"linear_cross_entropy", "rank " + std::to_string(victim)});
    }
  });
}

TEST_P(CutClasses, WeightsSumsAndSingleLossesToo) {
  run([&](Group world) {
    const Mesh mesh = mesh_of_ranks(world, {world.size()});
    for (const auto reduction : {at::Reduction::None, at::Reduction::Sum, at::Reduction::Mean}) {
      LossCase of;
      const at::Tensor weights = at::arange(7, at::kDouble) + 1;
      const at::Tensor logits = at::linear(of.input, of.weight).detach();
      at::Tensor plain = logits.clone().set_requires_grad(true);
      at::Tensor cut = distribute(logits, mesh, {Shard(1)}).detach().set_requires_grad(true);
      const auto loss = [&](const at::Tensor& x, const at::Tensor& y, const at::Tensor& w) {
        return at::nll_loss(at::log_softmax(x, 1), y, w, reduction, -1);
      };
      at::Tensor expected = loss(plain, of.target, weights);
      at::Tensor found = loss(cut, distribute(of.target, mesh, {Replicate()}),
                              distribute(weights, mesh, {Replicate()}));
      EXPECT_TRUE(at::allclose(full_tensor(found.detach()), expected, 1e-12));
      expected.sum().backward();
      found.sum().backward();
      EXPECT_EQ(placements(cut.grad()), Placements{Shard(1)});
      EXPECT_TRUE(at::allclose(full_tensor(cut.grad()), plain.grad(), 1e-12, 1e-14));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CutClasses,
                         testing::Values(std::tuple(test::BackendKind::local, 1),
                                         std::tuple(test::BackendKind::local, 2),
                                         std::tuple(test::BackendKind::local, 3),
                                         std::tuple(test::BackendKind::local, 4),
                                         std::tuple(test::BackendKind::shm, 2)),
                         test::backend_test_name);

TEST(GlobalLinearCrossEntropy, ACopyWhoseBaseWasWrittenIsRefused) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::Tensor x = distribute(test::numbers({2, 4, 3}), mesh, {Shard(0)}), h = x.select(0, 1);
    at::Tensor w = distribute(test::numbers({5, 3}).sin(), mesh, {Replicate()});
    at::Tensor target = distribute(at::zeros({4}, at::kLong), mesh, {Replicate()});
    EXPECT_NO_THROW((void)linear_cross_entropy(h, w, target));
    x.zero_();
    EXPECT_THROW((void)linear_cross_entropy(h, w, target), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep
