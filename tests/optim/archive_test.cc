// torch::save and torch::load between our optimizers and torch::optim's, in both directions, for
// every optimizer.
#include "optim/support.h"
#include "support/messages.h"

#include <lockstep/base/error.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>

#include <sstream>

namespace lockstep::optim {
namespace {

using test::copies_of;
using test::set_gradients;
using test::some_parameters;

template <class Ours, class Theirs, class Options>
void exchange(const Options& options) {
  auto mine = some_parameters(), other = copies_of(mine);
  Ours ours(mine, options);
  Theirs theirs(other, options);
  auto together = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      set_gradients(mine, other);
      ours.step();
      theirs.step();
    }
  };
  together(5);
  std::stringstream from_ours, from_theirs;
  torch::save(ours, from_ours);
  torch::save(theirs, from_theirs);
  torch::load(ours, from_theirs);
  torch::load(theirs, from_ours);
  together(5);
  for (std::size_t i = 0; i < mine.size(); ++i)
    EXPECT_LE(test::ulps_between(mine[i], other[i]), 8) << i;
}

TEST(Archives, GoBothWays) {
  exchange<AdamW, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).amsgrad(true));
  exchange<Adam, torch::optim::Adam>(torch::optim::AdamOptions(1e-2));
  exchange<SGD, torch::optim::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9).dampening(0.1));
  exchange<SGD, torch::optim::SGD>(torch::optim::SGDOptions(1e-2));
}

// Tries the state of a whole parameter for a part, and of a part for the whole.
TEST(Archives, OfOtherSizesAreRefused) {
  const auto refuses = [](const std::vector<std::int64_t>& saved,
                          const std::vector<std::int64_t>& sizes, at::ScalarType dtype,
                          const std::string& words) {
    auto of = [&](const std::vector<std::int64_t>& of_sizes) {
      at::Tensor parameter = at::ones(of_sizes, dtype).requires_grad_();
      parameter.mutable_grad() = at::ones(of_sizes, dtype);
      return parameter;
    };
    AdamW from({of(saved)}, torch::optim::AdamWOptions(1e-2));
    from.step();
    std::stringstream archive;
    torch::save(from, archive);
    const at::Tensor parameter = of(sizes);
    AdamW to({parameter}, torch::optim::AdamWOptions(1e-2));
    torch::load(to, archive);
    test::expect_words(test::message_of<InvalidArgument>([&] { to.step(); }),
                       {"AdamW", "parameter 0 of group 0", words});
    EXPECT_TRUE(parameter.detach().equal(at::ones(sizes, dtype)));
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    refuses({4, 2}, {2, 2}, dtype, "[2, 2], found [4, 2]");
    refuses({2, 2}, {4, 2}, dtype, "[4, 2], found [2, 2]");
    refuses({6}, {3}, dtype, "[3], found [6]");
  }
}

// Many parameters share one storage of state: an archive must contain it only once.
TEST(Archives, AreNotLargerThanTheState) {
  std::vector<std::vector<std::int64_t>> shapes(20, {1000});
  auto mine = test::parameters_of(shapes), other = copies_of(mine);
  AdamW ours(mine, torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW theirs(other, torch::optim::AdamWOptions(1e-2));
  set_gradients(mine, other);
  ours.step();
  theirs.step();
  std::stringstream from_ours, from_theirs;
  torch::save(ours, from_ours);
  torch::save(theirs, from_theirs);
  EXPECT_LT(from_ours.str().size(), from_theirs.str().size() * 1.1);
}

TEST(Archives, HoldTheOptionsOfGroups) {
  auto mine = some_parameters();
  AdamW ours(mine, torch::optim::AdamWOptions(0.5).weight_decay(0.25));
  std::stringstream archive;
  torch::save(ours, archive);
  AdamW again(mine, torch::optim::AdamWOptions(0.1));
  torch::load(again, archive);
  auto& options = static_cast<torch::optim::AdamWOptions&>(again.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.5);
  EXPECT_EQ(options.weight_decay(), 0.25);
}

}  // namespace
}  // namespace lockstep::optim
