#include <lockstep/parallel/data/diloco.h>

#include "parallel/data/hook_support.h"

#include <lockstep/module/state_dict.h>
#include <lockstep/optim/adamw.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

using namespace test;

const std::vector<std::vector<std::int64_t>> diloco_shapes = {{6, 5}, {7}, {3, 4}};

void inner_step(Table& table, torch::optim::Optimizer& adamw, int rank, int step) {
  adamw.zero_grad();
  table->loss(gradients_for(*table, rank, step)).backward();
  adamw.step();
}

// The algorithm of the papers for all ranks in one process, parameter by parameter.
class DiLoCoReference {
 public:
  DiLoCoReference(int ranks, DiLoCoOptions options, std::vector<int> fragment_of)
      : options_(std::move(options)), fragment_of_(std::move(fragment_of)) {
    for (int rank = 0; rank < ranks; ++rank) {
      tables.emplace_back(diloco_shapes, at::kDouble);
      optimizers_.push_back(std::make_unique<torch::optim::AdamW>(
          tables.back()->parameters(), torch::optim::AdamWOptions(0.05)));
    }
    for (const at::Tensor& weight : tables[0]->weights) {
      outer_.push_back(weight.detach().clone().requires_grad_());
      torch::optim::SGDOptions sgd(options_.outer_lr);
      sgd.momentum(options_.outer_momentum)
          .nesterov(options_.nesterov && options_.outer_momentum > 0);
      outer_sgd_.push_back(
          std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{outer_.back()}, sgd));
      arriving_.emplace_back();
    }
  }

  void step(int number) {
    for (std::size_t rank = 0; rank < tables.size(); ++rank)
      inner_step(tables[rank], *optimizers_[rank], static_cast<int>(rank), number);
    std::int64_t step = number + 1;
    for (std::size_t i = 0; i < outer_.size(); ++i) {
      std::int64_t first = fragment_of_[i] * options_.inner_steps / options_.fragments;
      if (first == 0) first = options_.inner_steps;
      std::int64_t since = step - first;
      if (since >= 0 && since % options_.inner_steps == 0) arriving_[i] = pseudo_gradient(i);
      since -= options_.overlap_steps;
      if (since >= 0 && since % options_.inner_steps == 0) arrive(i);
    }
  }

  std::vector<Table> tables;

 private:
  at::Tensor pseudo_gradient(std::size_t i) {
    torch::NoGradGuard no_grad;
    at::Tensor sum = at::zeros_like(outer_[i]);
    for (auto& table : tables) sum += outer_[i] - table->weights[i];
    return sum / static_cast<double>(tables.size());
  }
  void arrive(std::size_t i) {
    outer_[i].mutable_grad() = arriving_[i];
    outer_sgd_[i]->step();
    torch::NoGradGuard no_grad;
    for (auto& table : tables)
      table->weights[i].copy_(options_.mixing * table->weights[i] +
                              (1 - options_.mixing) * outer_[i]);
  }

  DiLoCoOptions options_;
  std::vector<int> fragment_of_;  // a parameter each
  std::vector<std::unique_ptr<torch::optim::AdamW>> optimizers_;
  std::vector<at::Tensor> outer_, arriving_;
  std::vector<std::unique_ptr<torch::optim::SGD>> outer_sgd_;
};

class DiLoCos : public testing::TestWithParam<BackendRanks> {
 protected:
  static void compare(const DiLoCoOptions& options, const std::vector<int>& fragment_of) {
    run_group(GetParam().backend, GetParam().size, [&](Group group) {
      Table table(diloco_shapes, at::kDouble);
      DiLoCo diloco(table, group, options);
      torch::optim::AdamW adamw(diloco.parameters(), torch::optim::AdamWOptions(0.05));
      DiLoCoReference reference(group.size(), options, fragment_of);
      for (int step = 0; step < 17; ++step) {
        inner_step(table, adamw, group.rank(), step);
        (void)diloco.step();
        reference.step(step);
        const Table& expected = reference.tables[static_cast<std::size_t>(group.rank())];
        for (std::size_t i = 0; i < diloco_shapes.size(); ++i)
          EXPECT_LT(largest_difference(table->weights[i].detach(), expected->weights[i].detach()),
                    1e-10)
              << "step " << step << " parameter " << i;
      }
    });
  }
};

TEST_P(DiLoCos, IsTheAlgorithmOfThePaper) { compare({.inner_steps = 4}, {0, 0, 0}); }

TEST_P(DiLoCos, WithoutNesterov) {
  compare({.inner_steps = 3, .outer_lr = 0.5, .nesterov = false}, {0, 0, 0});
}

TEST_P(DiLoCos, WithPlainAverages) {
  compare({.inner_steps = 1, .outer_lr = 1, .outer_momentum = 0}, {0, 0, 0});
}

TEST_P(DiLoCos, StreamingFragments) {
  compare({.inner_steps = 5, .fragments = 2}, {0, 1, 1});
  compare({.inner_steps = 6, .fragments = 3, .overlap_steps = 2, .mixing = 0.5}, {0, 1, 2});
}

std::int64_t int8_bytes(std::int64_t n) { return n + 4 * ((n + 1023) / 1024); }

// Returns the size of this rank's share of n numbers: shares are equal numbers of whole blocks of
// 1024, except that the last ranks may have fewer.
std::int64_t share_of(std::int64_t n, const Group& group) {
  const std::int64_t blocks = (n + 1023) / 1024, most = (blocks + group.size() - 1) / group.size();
  const std::int64_t begin = std::min(group.rank() * most * 1024, n);
  return std::min(begin + most * 1024, n) - begin;
}

TEST_P(DiLoCos, SendsWhatTheFormulaSays) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    for (auto format : {PseudoGradients::float32, PseudoGradients::int8}) {
      Table table({{60, 50}, {70}}, at::kFloat);
      DiLoCo diloco(table, group, {.inner_steps = 5, .pseudo_gradients = format});
      lockstep::optim::AdamW adamw(diloco.parameters(), torch::optim::AdamWOptions(0.01));
      std::int64_t before = group.traffic().bytes;
      for (int step = 0; step < 23; ++step) {
        inner_step(table, adamw, group.rank(), step);
        EXPECT_EQ(diloco.step(), (step + 1) % 5 == 0 ? 1 : 0);
      }
      std::int64_t n = 60 * 50 + 70;
      std::int64_t once = bytes_of_sum(group, n, 4);
      // All shares but this rank's to their ranks, then the average of its share to all.
      const std::int64_t share = int8_bytes(share_of(n, group));
      if (format == PseudoGradients::int8)
        once = int8_bytes(n) - share + (group.size() - 1) * share;
      std::int64_t expected = group.size() == 1 ? 0 : 23 / 5 * once;
      EXPECT_EQ(diloco.bytes_sent(), expected);
      EXPECT_EQ(group.traffic().bytes - before, expected);
    }
  });
}

// All ranks get equal parameters, and int8 differs from float32 by at most its resolution.
TEST_P(DiLoCos, Int8IsCloseAndEqualOnAllRanks) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    auto train = [&](PseudoGradients format) {
      Table table(diloco_shapes, at::kFloat);
      DiLoCo diloco(table, group, {.inner_steps = 4, .pseudo_gradients = format});
      torch::optim::AdamW adamw(diloco.parameters(), torch::optim::AdamWOptions(0.01));
      for (int step = 0; step < 12; ++step) {
        inner_step(table, adamw, group.rank(), step);
        (void)diloco.step();
      }
      at::Tensor all = table->weights[0].detach().clone(), root = all.clone();
      group.broadcast(root).wait();
      EXPECT_TRUE(same_bits(all, root));
      return all;
    };
    EXPECT_LT(largest_difference(train(PseudoGradients::float32), train(PseudoGradients::int8)),
              2e-3);
  });
}

TEST_P(DiLoCos, GoesOnFromItsState) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    DiLoCoOptions options{.inner_steps = 6,
                          .pseudo_gradients = PseudoGradients::int8,
                          .fragments = 3,
                          .overlap_steps = 2,
                          .mixing = 0.25};
    for (int saved_at : {1, 7, 8, 9, 11}) {  // with fragments on their way, and without
      Table table(diloco_shapes, at::kDouble), second(diloco_shapes, at::kDouble);
      DiLoCo diloco(table, group, options);
      torch::optim::SGD sgd(diloco.parameters(), 0.01);
      for (int step = 0; step < saved_at; ++step) {
        inner_step(table, sgd, group.rank(), step);
        (void)diloco.step();
      }
      DiLoCo resumed(second, group, options);
      lockstep::load_state_dict(*second, lockstep::state_dict(*table));
      resumed.load_state(diloco.state());
      EXPECT_EQ(resumed.steps(), saved_at);
      torch::optim::SGD other(resumed.parameters(), 0.01);
      for (int step = saved_at; step < 20; ++step) {
        inner_step(table, sgd, group.rank(), step);
        inner_step(second, other, group.rank(), step);
        EXPECT_EQ(diloco.step(), resumed.step());
        for (std::size_t i = 0; i < diloco_shapes.size(); ++i)
          EXPECT_TRUE(same_bits(table->weights[i], second->weights[i])) << saved_at << " " << step;
      }
    }
  });
}

TEST_P(DiLoCos, MaySynchronizeBeforeTheFirstStep) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table(diloco_shapes, at::kDouble);
    DiLoCo diloco(table, group,
                  {.inner_steps = 4, .outer_lr = 1, .outer_momentum = 0, .fragments = 3});
    at::Tensor first = table->weights[0].detach();
    const at::Tensor before = first.clone();
    first.add_(group.rank());
    EXPECT_EQ(diloco.synchronize(), 3);
    EXPECT_LT(largest_difference(first, before + (group.size() - 1) / 2.0), 1e-12);
    EXPECT_EQ(diloco.steps(), 0);
  });
}

TEST_P(DiLoCos, InfiniteValuesAreNamedAndNothingIsUpdated) {
  for (auto format : {PseudoGradients::float32, PseudoGradients::int8})
    run_group(GetParam().backend, GetParam().size, [&](Group group) {
      Table table(diloco_shapes, at::kFloat);
      DiLoCo diloco(table, group, {.inner_steps = 1, .pseudo_gradients = format, .fragments = 1});
      if (group.rank() == group.size() - 1) {
        torch::NoGradGuard no_grad;
        table->weights[1][2] = INFINITY;
      }
      at::Tensor before = table->weights[0].detach().clone();
      expect_contains(message_of<ReductionFailed>([&] { (void)diloco.step(); }),
                      "the pseudo-gradient of fragment 0 (w0 ... w2) has inf or NaN");
      EXPECT_TRUE(same_bits(before, table->weights[0]));
    });
}

TEST_P(DiLoCos, WhatIsSavedIsTheOuterModel) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table(diloco_shapes, at::kDouble);
    DiLoCo diloco(table, group, {.inner_steps = 3});
    torch::optim::SGD sgd(diloco.parameters(), 0.01);
    for (int step = 0; step < 4; ++step) {
      inner_step(table, sgd, group.rank(), step);
      (void)diloco.step();
    }
    std::vector<Part> parts = diloco.state_parts();
    ASSERT_EQ(parts.size(), diloco_shapes.size());
    for (const Part& part : parts) {
      at::Tensor root = part.tensor.clone();
      group.broadcast(root).wait();
      EXPECT_TRUE(same_bits(root, part.tensor)) << part.name;
    }
    for (const Part& part : diloco.loading()) part.tensor.fill_(0.5);
    EXPECT_TRUE(at::equal(table->weights[2], at::full({3, 4}, 0.5, at::kDouble)));
  });
}

// Loading discards a fragment in flight and the momentum: the handle then behaves like a new handle
// with these values.
TEST_P(DiLoCos, LoadingBeginsAnew) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    DiLoCoOptions options{.inner_steps = 4, .overlap_steps = 2};
    for (bool by_parts : {false, true}) {
      Table table(diloco_shapes, at::kDouble), fresh(diloco_shapes, at::kDouble);
      DiLoCo diloco(table, group, options);
      torch::optim::SGD sgd(diloco.parameters(), 0.01);
      for (int step = 0; step < 8; ++step) {  // arrived at 6; posted at 8
        inner_step(table, sgd, group.rank(), step);
        (void)diloco.step();
      }
      std::map<std::string, at::Tensor> loaded;
      for (const auto& [name, tensor] : diloco.state_dict())
        loaded[name] = at::full_like(tensor, 0.25);
      lockstep::load_state_dict(*fresh, loaded);
      DiLoCo other(fresh, group, options);
      torch::optim::SGD other_sgd(other.parameters(), 0.01);
      if (by_parts) {
        for (const Part& part : diloco.loading()) part.tensor.copy_(loaded.at(part.name));
      } else {
        diloco.load_state_dict(loaded);
      }
      EXPECT_EQ(diloco.steps(), 8);
      for (int step = 0; step < 11; ++step) {
        inner_step(table, sgd, group.rank(), step);
        inner_step(fresh, other_sgd, group.rank(), step);
        EXPECT_EQ(diloco.step(), other.step()) << step;
        for (std::size_t i = 0; i < diloco_shapes.size(); ++i)
          EXPECT_TRUE(same_bits(table->weights[i], fresh->weights[i])) << step << " " << i;
      }
    }
  });
}

TEST_P(DiLoCos, WhatCannotBeLoadedChangesNothing) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table(diloco_shapes, at::kDouble);
    DiLoCo diloco(table, group, {.inner_steps = 1, .overlap_steps = 0});
    torch::optim::SGD sgd(diloco.parameters(), 0.01);
    inner_step(table, sgd, group.rank(), 0);
    (void)diloco.step();
    auto before = diloco.state();
    EXPECT_THROW(diloco.load_state_dict({{"w9", at::ones({2})}}), BadInput);
    auto after = diloco.state();
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [name, tensor] : before)
      EXPECT_TRUE(same_bits(tensor, after.at(name))) << name;
  });
}

INSTANTIATE_TEST_SUITE_P(All, DiLoCos, testing::ValuesIn(usual_ranks()), name_of_ranks);

TEST(DiLoCoErrors, RefusesWhatMakesNoSense) {
  Group group;
  Table table(diloco_shapes, at::kFloat);
  auto refusal = [&](DiLoCoOptions options) {
    return message_of<InvalidArgument>([&] { DiLoCo diloco(table, group, options); });
  };
  expect_contains(refusal({.inner_steps = 0}), "inner_steps must be at least 1");
  expect_contains(refusal({.outer_lr = 0}), "outer_lr must be positive");
  expect_contains(refusal({.outer_momentum = 1}), "outer_momentum");
  expect_contains(refusal({.fragments = 0}), "fragments must be 1 to inner_steps");
  expect_contains(refusal({.fragments = 4}),
                  "expected at least as many trained parameters as fragments, 4, found 3");
  expect_contains(refusal({.inner_steps = 5, .overlap_steps = 5}), "overlap_steps");
  expect_contains(refusal({.mixing = 1}), "mixing");
  Table narrow(diloco_shapes, at::kBFloat16);
  expect_contains(message_of<InvalidArgument>([&] { DiLoCo diloco(narrow, group); }),
                  "parameters must be float32 or wider, w0 is BFloat16");
  DiLoCo diloco(table, group);
  auto state = diloco.state();
  auto without = state;
  without.erase("outer.w1");
  expect_contains(message_of<BadInput>([&] { diloco.load_state(without); }), "no outer.w1");
  auto other = state;
  other["outer.w1"] = at::ones({9});
  expect_contains(message_of<BadInput>([&] { diloco.load_state(other); }),
                  "outer.w1 of the state: expected shape [7], found [9]");
  for (std::int64_t posted : {-1, 1, 1000000000}) {
    auto wrong = state;
    wrong["posted"] = at::full({1}, posted, at::kLong);
    expect_contains(message_of<BadInput>([&] { diloco.load_state(wrong); }),
                    "posted of the state: expected 0 or one of the last 500 steps up to 0, found");
  }
  auto negative = state;
  negative["step"] = at::full({1}, -3, at::kLong);
  expect_contains(message_of<BadInput>([&] { diloco.load_state(negative); }),
                  "step of the state: expected at least 0, found -3");
  state["outer.w7"] = at::ones({9});
  expect_contains(message_of<BadInput>([&] { diloco.load_state(state); }),
                  "no unknown tensors, found 1");
}

// The group is aborted while a fragment is in flight: incomplete data must never be used as an
// average.
TEST(DiLoCoErrors, AFailedAverageEndsTheHandle) {
  for (auto format : {PseudoGradients::float32, PseudoGradients::int8})
    run_as_threads(3, [&](Group group) {
      Table table(diloco_shapes, at::kFloat);
      DiLoCo diloco(table, group,
                    {.inner_steps = 4, .pseudo_gradients = format, .overlap_steps = 2});
      auto first = diloco.state();
      torch::optim::SGD sgd(diloco.parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        inner_step(table, sgd, group.rank(), step);
        (void)diloco.step();
      }
      if (group.rank() == 2) return group.abort("a rank that leaves");
      // step() posts a fragment or throws at once; state() waits for the fragment.
      EXPECT_THROW(
          {
            (void)diloco.step();
            (void)diloco.state();
          },
          Error);
      auto refused = [](const std::function<void()>& use) {
        std::string text = message_of<InvalidArgument>(use);
        expect_contains(text, "DiLoCo: an average of pseudo-gradients has failed before (");
        expect_contains(text, "a rank that leaves");
        EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      };
      at::Tensor before = table->weights[0].detach().clone();
      for (int step = 0; step < 3; ++step) refused([&] { (void)diloco.step(); });
      refused([&] { (void)diloco.state(); });
      refused([&] { diloco.load_state(first); });
      EXPECT_TRUE(same_bits(before, table->weights[0]));
      EXPECT_TRUE(same_bits(diloco.state_parts()[1].tensor, first.at("outer.w1")));
    });
}

// Its values would differ between the ranks, because no fragment has it.
TEST(DiLoCoErrors, WhatIsUnfrozenLaterIsNamed) {
  run_as_threads(2, [](Group group) {
    Table table(diloco_shapes, at::kFloat);
    table->weights[1].requires_grad_(false);
    DiLoCo diloco(table, group, {.inner_steps = 2});
    EXPECT_EQ(diloco.step(), 0);
    table->weights[1].requires_grad_(true);
    expect_contains(message_of<InvalidArgument>([&] { (void)diloco.step(); }),
                    "w1 requires a gradient now");
    table->weights[1].requires_grad_(false);
    EXPECT_EQ(diloco.step(), 1);
  });
}

}  // namespace
}  // namespace lockstep
