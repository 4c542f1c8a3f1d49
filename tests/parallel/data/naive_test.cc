#include <lockstep/parallel/data/naive.h>

#include "parallel/support.h"

namespace lockstep {
namespace {

using namespace test;

class Naive : public testing::TestWithParam<BackendRanks> {};

TEST_P(Naive, BroadcastsAndAverages) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    torch::nn::Linear model(3, 2);
    fill_parameters(*model, group.rank());
    naive::broadcast_parameters(*model, group);
    EXPECT_TRUE(same_bits(model->weight, values({2, 3}, 0) * 0.5));
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < group.size(); ++rank) of_ranks.push_back({values({2, 3}, rank)});
    (model->weight * of_ranks[static_cast<std::size_t>(group.rank())][0]).sum().backward();
    naive::average_gradients(*model, group);
    EXPECT_TRUE(same_bits(model->weight.grad(), average(of_ranks)[0]));
    EXPECT_FALSE(model->bias.grad().defined());
  });
}

TEST_P(Naive, GradientsThatShareMemoryAreAveragedOnce) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    struct Pair : torch::nn::Module {
      at::Tensor a = register_parameter("a", values({4, 6}, 1));
      at::Tensor b = register_parameter("b", values({24}, 2));
    } model;
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < group.size(); ++rank) of_ranks.push_back({values({24}, rank)});
    const at::Tensor& own = of_ranks[static_cast<std::size_t>(group.rank())][0];
    ((model.a.view({24}) + model.b) * own).sum().backward();
    naive::average_gradients(model, group);
    EXPECT_TRUE(same_bits(model.a.grad().view({24}), average(of_ranks)[0]));
    EXPECT_TRUE(same_bits(model.b.grad(), average(of_ranks)[0]));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Naive, testing::ValuesIn(usual_ranks()), name_of_ranks);

}  // namespace
}  // namespace lockstep
