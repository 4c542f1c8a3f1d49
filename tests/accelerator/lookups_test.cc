// Lookups of rows and classes that are divided over ranks, on the simulated accelerator. A rank has
// only some rows, so it could mistake an index that is out of bounds for a row of another rank.
#include <lockstep/base/error.h>
#include <lockstep/global/linear_cross_entropy.h>
#include <lockstep/global/tensor.h>
#include <lockstep/mesh/mesh.h>

#include "support/accelerator/expectations.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/ones.h>

#include <functional>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr std::int64_t rows = 6;

struct Lookup {
  std::string name;
  // Looks the indices up in a tensor of ones [rows, rows], whose rows are divided over the ranks.
  std::function<at::Tensor(const at::Tensor& ones, const at::Tensor& indices)> run;
  std::string report;
};

void PrintTo(const Lookup& what, std::ostream* out) { *out << what.name; }

class WrongIndices : public AcceleratorTest, public testing::WithParamInterface<Lookup> {
 protected:
  // Returns the errors of both ranks if the indices are 0, 1, ..., `last`.
  static std::vector<std::string> look_up(std::int64_t last, bool on_device) {
    return errors_of_ranks(2, [&](const Group& world, c10::Device device) {
      const c10::Device place = on_device ? device : c10::Device(c10::kCPU);
      const Mesh mesh(world, {{"tp", 2}});
      const at::Tensor ones =
          distribute(at::ones({rows, rows}, at::TensorOptions(place)), mesh, {Shard(0)});
      at::Tensor indices = at::arange(rows);
      indices[rows - 1] = last;
      const at::Tensor result =
          GetParam().run(ones, distribute(indices.to(place), mesh, {Replicate()}));
      (void)full_tensor(result).cpu();
    });
  }
};

TEST_P(WrongIndices, FailOnADevice) {
  EXPECT_EQ(look_up(rows - 1, true), std::vector<std::string>());
  expect_no_faults();
  for (const std::int64_t wrong : {rows, std::int64_t{-1}}) {
    (void)look_up(wrong, true);
    expect_fault(Fault::kernel, "_assert_async", GetParam().report);
  }
}

TEST_P(WrongIndices, ThrowOnTheHost) {
  for (const std::int64_t wrong : {rows, std::int64_t{-1}}) {
    const auto errors = look_up(wrong, false);
    ASSERT_EQ(errors.size(), 2);
    for (const std::string& error : errors)
      EXPECT_NE(error.find(GetParam().report + ", found " + std::to_string(wrong)),
                std::string::npos)
          << error;
  }
}

class LinearCrossEntropyOnDevices : public AcceleratorTest {};

// Returns the loss over the classes and rows of both ranks, and the gradients.
at::Tensor loss_and_gradients(const Group& world, c10::Device place, double scale) {
  const Mesh mesh(world, {{"tp", 2}});
  const auto made = [&](std::int64_t seed, Placement placement) {
    const at::Tensor values = at::arange(seed, seed + rows * rows, at::kFloat).remainder(7) / 7;
    return distribute(values.view({rows, rows}).to(place), mesh, {placement})
        .set_requires_grad(true);
  };
  const at::Tensor input = made(1, Replicate()), weight = made(3, Shard(0));
  const at::Tensor target = distribute(at::arange(rows).to(place), mesh, {Replicate()});
  const int before = Machine::get().counts(world.rank()).all_synchronizations();
  const at::Tensor loss = linear_cross_entropy(input, weight, target);
  (loss * scale).backward();
  EXPECT_EQ(Machine::get().counts(world.rank()).all_synchronizations(), before);
  at::NoGradGuard no_grad;
  return at::cat({full_tensor(loss).view({1}), full_tensor(input.grad()).view({-1}),
                  full_tensor(weight.grad()).view({-1})});
}

TEST_F(LinearCrossEntropyOnDevices, HasTheBitsOfTheHostWithoutWaiting) {
  for (const double scale : {1.0, 0.3}) {
    std::vector<at::Tensor> on_host(2), on_device(2);
    run_ranks(2, [&](const Group& world, c10::Device) {
      on_host.at(world.rank()) = loss_and_gradients(world, c10::kCPU, scale);
    });
    run_ranks(2, [&](const Group& world, c10::Device device) {
      on_device.at(world.rank()) = loss_and_gradients(world, device, scale);
    });
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(at::equal(on_device.at(rank).cpu(), on_host.at(rank)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    OnDevices, WrongIndices,
    testing::Values(Lookup{"embedding",
                           [](const at::Tensor& ones, const at::Tensor& indices) {
                             return at::embedding(ones, indices);
                           },
                           "expected indices of a table of 6 rows"},
                    Lookup{"nll_loss",
                           [](const at::Tensor& ones, const at::Tensor& indices) {
                             return at::nll_loss(ones.t(), indices);
                           },
                           "expected a target below 6"},
                    Lookup{"linear_cross_entropy",
                           [](const at::Tensor& ones, const at::Tensor& indices) {
                             return linear_cross_entropy(redistribute(ones, {Replicate()}), ones,
                                                         indices);
                           },
                           "expected targets from 0 to 5, or -100 to ignore one"}),
    [](const testing::TestParamInfo<Lookup>& info) { return info.param.name; });

}  // namespace
