#include <lockstep/parallel/data/local_sgd.h>

#include "parallel/data/hook_support.h"

namespace lockstep {
namespace {

using namespace test;

const std::vector<std::vector<std::int64_t>> local_shapes = {{4, 3}, {5}};

// The copies of all ranks, in one process.
struct Copies {
  explicit Copies(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      tables.emplace_back(local_shapes, at::kDouble);
      optimizers.emplace_back(tables.back()->parameters(), 0.1);
    }
  }
  void step(int step) {
    for (std::size_t rank = 0; rank < tables.size(); ++rank) {
      optimizers[rank].zero_grad();
      tables[rank]->loss(gradients_for(*tables[rank], static_cast<int>(rank), step)).backward();
      optimizers[rank].step();
    }
  }
  void average(std::size_t begin, std::size_t end) {
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < local_shapes.size(); ++i) {
      at::Tensor sum = at::zeros_like(tables[0]->weights[i]);
      for (std::size_t rank = begin; rank < end; ++rank) sum += tables[rank]->weights[i];
      for (std::size_t rank = begin; rank < end; ++rank)
        tables[rank]->weights[i].copy_(sum / static_cast<double>(end - begin));
    }
  }
  void expect(const TableImpl& found, int rank, const std::string& where) const {
    for (std::size_t i = 0; i < local_shapes.size(); ++i)
      EXPECT_LT(largest_difference(found.weights[i].detach(),
                                   tables[static_cast<std::size_t>(rank)]->weights[i].detach()),
                1e-12)
          << where;
  }
  std::vector<Table> tables;
  std::vector<torch::optim::SGD> optimizers;
};

class Locals : public testing::TestWithParam<BackendRanks> {};

TEST_P(Locals, AveragesEveryPeriodAndCountsItsBytes) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table(local_shapes, at::kDouble);
    LocalSgd local(table, group, {.period = 3});
    torch::optim::SGD sgd(local.parameters(), 0.1);
    Copies copies(group.size());
    std::int64_t before = group.traffic().bytes;
    for (int step = 0; step < 10; ++step) {
      local.zero_grad();
      table->loss(gradients_for(*table, group.rank(), step)).backward();
      sgd.step();
      copies.step(step);
      bool averages = (step + 1) % 3 == 0;
      if (averages) copies.average(0, static_cast<std::size_t>(group.size()));
      EXPECT_EQ(local.step(), averages);
      copies.expect(*table, group.rank(), "step " + std::to_string(step));
    }
    std::int64_t numbers = 4 * 3 + 5;
    EXPECT_EQ(group.traffic().bytes - before, 10 / 3 * bytes_of_sum(group, numbers, 8));
    // The copies differ, so there is no single model to save.
    if (group.size() > 1)
      expect_contains(message_of<InvalidArgument>([&] { (void)local.state_parts(); }),
                      "the ranks' parameters differ after step 10");
    local.average_now();
    EXPECT_EQ(local.state_parts().size(), 2U);
  });
}

void set_to_rank(TableImpl& table, int rank) {
  torch::NoGradGuard no_grad;
  for (at::Tensor& weight : table.weights) weight.fill_(rank);
}

// Saving is also refused between the optimizer's step and LocalSgd's step, and after any other
// write to the parameters.
TEST_P(Locals, WhatRanksHaveOfTheirOwnIsNotSavedAndMayBeLoadedOver) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table(local_shapes, at::kDouble);
    LocalSgd local(table, group, {.period = 1});
    EXPECT_EQ(local.state_parts().size(), 2U);
    set_to_rank(*table, group.rank());
    const std::string words = "the ranks' parameters differ after step 0";
    if (group.size() > 1)
      expect_contains(message_of<InvalidArgument>([&] { (void)local.state_parts(); }), words);
    EXPECT_EQ(local.mutable_state_parts().size(), 2U);
    for (const Part& part : local.loading()) part.tensor.fill_(7);
    EXPECT_EQ(local.state_parts().size(), 2U);
    EXPECT_EQ(table->weights[0][0][0].item<double>(), 7);
    set_to_rank(*table, group.rank());
    EXPECT_TRUE(local.step());
    EXPECT_EQ(local.state_parts()[1].tensor[0].item<double>(), (group.size() - 1) / 2.0);
  });
}

TEST_P(Locals, AnAverageOfSomeRanksIsNotSaved) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    if (group.size() == 1) return;
    Table table(local_shapes, at::kDouble);
    LocalSgd local(table, group, {.period = 1});
    Group pair = group.split(group.rank() / 2);
    for (const at::Tensor& weight : table->weights) pair.all_reduce(weight, Op::average).wait();
    expect_contains(message_of<InvalidArgument>([&] { (void)local.state_parts(); }),
                    "the ranks' parameters differ after step 0");
  });
}

TEST_P(Locals, WhatIsUnfrozenLaterIsAveraged) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table(local_shapes, at::kDouble);
    table->weights[1].requires_grad_(false);
    LocalSgd local(table, group, {.period = 2});
    EXPECT_FALSE(local.step());
    table->weights[1].requires_grad_(true);
    table->weights[0].requires_grad_(false);
    set_to_rank(*table, group.rank());
    EXPECT_TRUE(local.step());
    EXPECT_EQ(local.steps(), 2);
    for (const at::Tensor& weight : table->weights)
      EXPECT_EQ(weight.view({-1})[0].item<double>(), (group.size() - 1) / 2.0);
  });
}

TEST_P(Locals, PostLocalSgdAveragesGradientsFirst) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table(local_shapes, at::kDouble), exact(local_shapes, at::kDouble);
    auto hook = post_local_sgd({.start_step = 2});
    DistributedDataParallel ddp(table, group, {.hook = hook});
    DistributedDataParallel plain(exact, group);
    torch::optim::SGD sgd(ddp.parameters(), 0.1), plain_sgd(plain.parameters(), 0.1);
    ModelAverager averager(ddp.parameters(), {{2, group}}, /*warmup_steps=*/2, hook);
    Copies copies(group.size());
    for (int step = 0; step < 7; ++step) {
      ddp.zero_grad();
      backward(ddp, *table, step);
      sgd.step();
      bool averages = step >= 2 && (step - 1) % 2 == 0;
      EXPECT_EQ(averager.step(), averages) << step;
      if (step >= 2 && !averages && group.size() > 1) {
        expect_contains(message_of<InvalidArgument>([&] { (void)ddp.state_parts(); }),
                        "the ranks' models may differ, since hook post_local_sgd(start_step 2, no "
                        "subgroups) does not average");
      } else {
        EXPECT_EQ(ddp.state_parts().size(), 2U) << step;
      }
      if (step < 2) {
        plain.zero_grad();
        backward(plain, *exact, step);
        plain_sgd.step();
        EXPECT_TRUE(same_bits(table->weights[0], exact->weights[0]));
        if (step == 1)
          for (auto& copy : copies.tables) {
            torch::NoGradGuard no_grad;
            for (std::size_t i = 0; i < local_shapes.size(); ++i)
              copy->weights[i].copy_(exact->weights[i]);
          }
        continue;
      }
      copies.step(step);
      if (averages) copies.average(0, static_cast<std::size_t>(group.size()));
      copies.expect(*table, group.rank(), "step " + std::to_string(step));
    }
    EXPECT_EQ(hook->state().at("step").item<std::int64_t>(), 7);
  });
}

// After an average over some ranks, the model cannot be saved; after an average over all ranks or a
// load, it can.
TEST(LocalLevels, OnlyAllRanksMakeOneModelOfPostLocalSgd) {
  run_as_threads(4, [](Group group) {
    Table table(local_shapes, at::kDouble);
    Group pair = group.split(group.rank() / 2);
    auto hook = post_local_sgd({.subgroup = pair});
    DistributedDataParallel ddp(table, group, {.hook = bf16_compression(hook)});
    ModelAverager averager(ddp.parameters(), {{1, pair}, {2, group}}, 0, hook);
    EXPECT_EQ(ddp.state_parts().size(), 2U);
    backward(ddp, *table, 0);
    EXPECT_TRUE(averager.step());
    EXPECT_THROW((void)ddp.state_parts(), InvalidArgument);
    EXPECT_TRUE(averager.step());
    EXPECT_EQ(ddp.state_parts().size(), 2U);
    ddp.zero_grad();
    backward(ddp, *table, 1);
    EXPECT_THROW((void)ddp.state_parts(), InvalidArgument);
    for (const Part& part : ddp.loading()) part.tensor.fill_(1);
    EXPECT_EQ(ddp.state_parts().size(), 2U);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Locals, testing::ValuesIn(usual_ranks()), name_of_ranks);

TEST(LocalLevels, SubgroupsAverageMoreOften) {
  run_as_threads(4, [](Group group) {
    Table table(local_shapes, at::kDouble);
    torch::optim::SGD sgd(table->parameters(), 0.1);
    Group pair = group.split(group.rank() / 2);
    ModelAverager averager(table->parameters(), {{2, pair}, {4, group}});
    Copies copies(4);
    for (int step = 0; step < 9; ++step) {
      sgd.zero_grad();
      table->loss(gradients_for(*table, group.rank(), step)).backward();
      sgd.step();
      copies.step(step);
      if ((step + 1) % 4 == 0) {
        copies.average(0, 4);
      } else if ((step + 1) % 2 == 0) {
        copies.average(0, 2);
        copies.average(2, 4);
      }
      (void)averager.step();
      copies.expect(*table, group.rank(), "step " + std::to_string(step));
    }
  });
}

TEST(LocalErrors, RefusesWhatMakesNoSense) {
  Group group;
  Table table(local_shapes, at::kDouble);
  auto parameters = table->parameters();
  EXPECT_THROW(ModelAverager(parameters, {}), InvalidArgument);
  EXPECT_THROW(ModelAverager(parameters, {{0, group}}), InvalidArgument);
  EXPECT_THROW(ModelAverager(parameters, {{4, group}, {4, group}}), InvalidArgument);
  EXPECT_THROW(ModelAverager(parameters, {{4, group}}, -1), InvalidArgument);
  EXPECT_THROW((void)post_local_sgd({.start_step = -1}), InvalidArgument);
  EXPECT_THROW(post_local_sgd({})->load_state({}), BadInput);
  for (const at::Tensor& wrong : {at::full({1}, -1, at::kLong), at::full({1}, NAN)})
    EXPECT_THROW(post_local_sgd({})->load_state({{"step", wrong}}), BadInput);
  EXPECT_THROW((void)LocalSgd(table, group, {.period = 0}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
