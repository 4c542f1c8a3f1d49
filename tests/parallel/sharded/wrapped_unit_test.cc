// Compares fully_shard() with the reference that wraps modules.
#include "parallel/sharded/wrapped_unit.h"
#include "parallel/sharded/support.h"

namespace lockstep {
namespace {

using namespace test;

class WrappedUnits : public testing::TestWithParam<BackendRanks> {};

TEST_P(WrappedUnits, HaveTheSameLossesShardsAndGradients) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    torch::nn::Sequential model(torch::nn::Linear(6, 9), torch::nn::Linear(9, 4));
    torch::nn::Linear first(6, 9), second(9, 4);
    fill_parameters(*model, 3);
    fill_parameters(*first, 3);
    fill_parameters(*second, 5);
    auto sharded = fully_shard(model, group, {.units = {"*"}});
    WrappedUnit<torch::nn::LinearImpl> a(first.ptr(), group), b(second.ptr(), group);
    auto ours = torch::optim::SGD(sharded.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      sharded.zero_grad();
      at::Tensor input = values({5, 6}, step * 10 + group.rank());
      at::Tensor loss = torch::relu(model->forward(input)).square().sum();
      at::Tensor expected = torch::relu(b.forward(a.forward(input))).square().sum();
      EXPECT_EQ(bits_of(loss), bits_of(expected)) << "step " << step;
      loss.backward();
      expected.backward();
      auto parameters = sharded.parameters();
      for (int layer = 0; layer < 2; ++layer) {
        auto& unit = layer == 0 ? a : b;
        at::Tensor gradient = unit.reduced_gradient();
        for (const auto& [i, elements, offset] : unit.owned()) {
          const at::Tensor& slice = parameters[static_cast<std::size_t>(2 * layer + i)];
          at::Tensor part = gradient.narrow(0, offset, elements.length());
          at::Tensor values = unit.shard().narrow(0, offset, elements.length());
          EXPECT_TRUE(same_bits(slice.grad(), part)) << "step " << step;
          EXPECT_TRUE(same_bits(slice, values)) << "step " << step;
          values.add_(part, -0.1);
        }
      }
      ours.step();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, WrappedUnits,
                         testing::ValuesIn(ranks_of({BackendKind::local}, {1, 2, 3, 4})),
                         name_of_ranks);

}  // namespace
}  // namespace lockstep
