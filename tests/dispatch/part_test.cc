// Parts: operations that keep the record, operations that are refused, and numbers over all ranks.
#include <lockstep/dispatch/part.h>

#include "dispatch/key.h"
#include "dispatch/part.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/local.h>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::dispatch {
namespace {

using Sizes = std::vector<std::int64_t>;

// Returns two parts side by side, with an empty part between them.
std::vector<at::Tensor> three_parts(Group group) {
  auto shard_group = std::make_shared<ShardGroup>(std::make_shared<Group>(std::move(group)));
  const auto part = [&](const char* name, layout::TensorSlice slice, std::int64_t offset) {
    return Part{
        .name = name, .slice = std::move(slice), .shard_group = shard_group, .offset = offset};
  };
  auto parts = std::make_shared<const std::vector<Part>>(
      std::vector<Part>{part("a", layout::range_slice(Sizes{2, 6}, {6, 12}), 0),
                        part("b", layout::range_slice(Sizes{5}, {5, 5}), 6),
                        part("c", layout::range_slice(Sizes{40}, {0, 10}), 6)});
  at::Tensor memory = at::arange(16, at::kFloat) + 1;
  std::vector<at::Tensor> tensors;
  for (auto [offset, count] : {std::pair{0, 6}, {6, 0}, {6, 10}})
    tensors.push_back(as_part(memory.narrow(0, offset, count), parts, offset, key()));
  return tensors;
}

using Action = std::function<void(const at::Tensor&)>;

std::string refusal_of(const Action& action, const at::Tensor& tensor) {
  try {
    action(tensor);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

const std::map<std::string, Action>& mixing() {
  static const std::map<std::string, Action> actions = {
      {"norm", [](auto& t) { (void)t.norm(); }},
      {"norm of order 1", [](auto& t) { (void)at::norm(t, 1); }},
      {"vector_norm", [](auto& t) { (void)at::linalg_vector_norm(t); }},
      {"sum", [](auto& t) { (void)t.sum(); }},
      {"mean", [](auto& t) { (void)t.mean(); }},
      {"max", [](auto& t) { (void)t.max(); }},
      {"amax", [](auto& t) { (void)t.amax(); }},
      {"min along", [](auto& t) { (void)t.min(0); }},
      {"dot", [](auto& t) { (void)at::dot(t, t); }},
      {"outer", [](auto& t) { (void)at::outer(t, t); }},
      {"a product by broadcasting",
       [](auto& t) {
         (void)(t.view({-1, 1}) * t);
       }},
      {"one element with all", [](auto& t) { (void)t.add(t[0]); }},
      {"mm",
       [](auto& t) {
         (void)at::mm(t.view({1, -1}), t.view({-1, 1}));
       }},
      {"matmul of a view",
       [](auto& t) {
         (void)at::matmul(t.view({2, -1}).t(), t.view({2, -1}));
       }},
      {"cat",
       [](auto& t) {
         (void)at::cat({t, t});
       }},
      {"stack",
       [](auto& t) {
         (void)at::stack({at::ones_like(t), t});
       }},
      {"sort", [](auto& t) { (void)t.sort(); }},
      {"cumsum", [](auto& t) { (void)t.cumsum(0); }},
      {"std", [](auto& t) { (void)t.std(); }},
      {"any", [](auto& t) { (void)t.isnan().any(); }},
      {"item of an element", [](auto& t) { (void)t[0].item(); }},
      {"foreach_norm", [](auto& t) { (void)at::_foreach_norm({t}); }},
      {"random numbers", [](auto& t) { t.detach().normal_(); }},
      {"softmax", [](auto& t) { (void)t.softmax(0); }},
      {"a product, then a sum", [](auto& t) { (void)(t * t).sum(); }},
      {"another dtype, then a norm", [](auto& t) { (void)t.to(at::kDouble).norm(); }},
      {"abs, then the largest", [](auto& t) { (void)t.data().abs().max(); }},
      {"a chain", [](auto& t) { (void)(t.square().add(1).sqrt() / 2 - t).to(at::kHalf).mean(); }},
      {"a view of a product", [](auto& t) { (void)(2 * t).narrow(0, 1, 2).sum(); }},
      {"the other operand", [](auto& t) { (void)at::where(t > 0, at::ones_like(t), t).sum(); }},
      {"what has a gradient", [](auto& t) { (void)(t.detach().requires_grad_() * 3).sum(); }}};
  return actions;
}

TEST(Parts, WhatMixesElementsIsRefusedByName) {
  run_as_threads(2, [&](Group group) {
    auto tensors = three_parts(group);
    for (const auto& [name, action] : mixing()) {
      for (std::size_t i : {0, 2}) {
        std::string text = refusal_of(action, tensors[i]);
        EXPECT_NE(text.find(i == 0 ? ": a is divided over 2 ranks" : ": c is divided"),
                  std::string::npos)
            << name << ": " << text;
      }
    }
    EXPECT_NE(refusal_of([](auto& t) { (void)t.norm(); }, tensors[1]).find(": b is"),
              std::string::npos);
    for (const at::Tensor& tensor : tensors)
      EXPECT_TRUE(at::equal(tensor, tensor.clone()));  // unharmed
  });
}

TEST(Parts, OneRankHasTheWholeAndMayDoAnything) {
  auto tensors = three_parts(Group());
  for (const auto& [name, action] : mixing()) EXPECT_EQ(refusal_of(action, tensors[2]), "") << name;
  EXPECT_EQ(tensors[0].sum().item<float>(), 21);
}

TEST(Parts, WhatTreatsElementsApartWorks) {
  run_as_threads(2, [](Group group) {
    auto tensors = three_parts(group);
    at::Tensor part = tensors[2], plain = part.clone();
    EXPECT_FALSE(part_of(plain));
    auto same = [&](const at::Tensor& found, const at::Tensor& expected) {
      EXPECT_TRUE(at::equal(found.clone(), expected));
    };
    same(part.mul(2).add_(part, 0.5).sqrt(), plain.mul(2).add_(plain, 0.5).sqrt());
    same(part.to(at::kDouble), plain.to(at::kDouble));
    same(part.lerp(at::zeros_like(part), 0.25), plain.lerp(at::zeros_like(plain), 0.25));
    same(at::where(part > 9, part, -part), at::where(plain > 9, plain, -plain));
    at::Tensor state = at::zeros_like(part);
    EXPECT_FALSE(part_of(state));
    state.mul_(0.9).addcmul_(part, part, 0.5);
    EXPECT_FALSE(part_of(state));  // a limit: `state` is not marked as a part
    same(state, plain * plain * 0.5);
    part.addcdiv_(part, state.sqrt().add_(1), -1);
    EXPECT_TRUE(part_of(part));
    part.masked_fill_(plain > 12, 7).clamp_(-5, 5).neg_();
    part.copy_(plain);
    same(part, plain);
    at::_foreach_mul_({part, tensors[0]}, 2);
    same(part, plain * 2);
    part.zero_();
    EXPECT_TRUE(at::allclose(part, at::zeros({10})));
    (void)part.view({2, 5}).t().contiguous().add_(1);
  });
}

TEST(Parts, TheRecordSurvivesWhatSharesMemory) {
  run_as_threads(2, [](Group group) {
    at::Tensor part = three_parts(group)[2].requires_grad_();
    std::vector<at::Tensor> copies{part};
    for (const at::Tensor& same :
         {part.detach(), part.data(), part.narrow(0, 3, 2), part.view({2, 5}), part[0],
          part.tensor_data(), copies[0], part.alias(), part + 1, part.to(at::kHalf)}) {
      ASSERT_TRUE(part_of(same));
      EXPECT_EQ(shard_group_of(same), shard_group_of(part));
    }
    const Part& found = *part_of(part);
    EXPECT_EQ(found.name, "c");
    EXPECT_EQ(found.slice, layout::range_slice(Sizes{40}, {0, 10}));
    at::Tensor plain = values_of(part.detach());
    EXPECT_EQ(plain.data_ptr(), part.data_ptr());
    EXPECT_EQ(plain.sum().item<float>(), 115);
  });
}

TEST(Parts, NumbersOfRanksAreCombined) {
  for (int ranks : {1, 2, 3, 5})
    run_as_threads(ranks, [&](Group group) {
      const auto kept = std::make_shared<Group>(group);
      ShardGroup shard_group(kept);
      EXPECT_EQ(shard_group.sum(group.rank() + 1), ranks * (ranks + 1) / 2);
      EXPECT_EQ(shard_group.largest(-group.rank()), 0);
      double bad = group.rank() == ranks - 1 ? std::nan("") : 3;
      EXPECT_TRUE(std::isnan(shard_group.largest(bad)));
      EXPECT_TRUE(std::isnan(shard_group.sum(bad)));
      bad = group.rank() == 0 ? std::numeric_limits<double>::infinity() : 3;
      EXPECT_EQ(shard_group.largest(bad), std::numeric_limits<double>::infinity());
    });
}

// A shard group refers to a Group object: if the program assigns another group to it, the ranks
// follow.
TEST(Parts, FollowTheGroupInItsPlace) {
  run_as_threads(4, [&](Group group) {
    const auto place = std::make_shared<Group>(group);
    const auto shard_group = std::make_shared<ShardGroup>(place);
    EXPECT_EQ(shard_group->size(), 4);
    *place = group.split(group.rank() % 2);
    EXPECT_EQ(shard_group->size(), 2);
    EXPECT_EQ(shard_group->sum(group.rank()), group.rank() % 2 == 0 ? 2 : 4);
  });
}

// Parts can be used outside of LibTorch's operations: printed to a stream, saved to a file.
TEST(Parts, CanBePrintedAndSaved) {
  run_as_threads(2, [](Group group) {
    at::Tensor part = three_parts(group)[2];
    for (const at::Tensor& tensor : {part, part * 2, part.to(at::kDouble)}) {
      std::ostringstream text, plain;
      text << tensor;
      plain << tensor.clone();
      EXPECT_EQ(text.str(), plain.str());
      std::stringstream bytes;
      torch::save(tensor, bytes);
      at::Tensor loaded;
      torch::load(loaded, bytes);
      EXPECT_TRUE(at::equal(loaded, tensor.clone()));
      EXPECT_FALSE(part_of(loaded));
    }
  });
}

// Averages parameters over steps, written in two ways, and copies the average back.
TEST(Parts, AveragesOfParametersWork) {
  run_as_threads(2, [](Group group) {
    at::Tensor part = three_parts(group)[2], plain = part.clone();
    at::Tensor average = part.clone(), other = part + 0, expected = plain.clone();
    for (int step = 0; step < 3; ++step) {
      part.add_(1);
      plain.add_(1);
      average.mul_(0.5).add_(part, 0.5);
      other = other * 0.5 + part * 0.5;
      expected = expected * 0.5 + plain * 0.5;
    }
    EXPECT_TRUE(at::equal(average, expected));
    EXPECT_TRUE(at::equal(other.clone(), expected));
    at::Tensor backup = part.clone();
    part.copy_(average);
    EXPECT_TRUE(at::equal(part, expected));
    part.copy_(backup);
    EXPECT_TRUE(at::equal(part, plain));
    EXPECT_TRUE(part_of(other));
  });
}

// Functions of LibTorch that would clip or search by this rank's elements only are refused.
TEST(Parts, FunctionsOfLibTorchThatMixAreRefused) {
  run_as_threads(3, [](Group group) {
    auto parameters = three_parts(group);
    for (at::Tensor& parameter : parameters) {
      parameter.requires_grad_();
      parameter.mutable_grad() = parameter.detach() * 2;
    }
    for (double norm_type : {1.0, 2.0, std::numeric_limits<double>::infinity()})
      EXPECT_THROW(torch::nn::utils::clip_grad_norm_(parameters, 1, norm_type), InvalidArgument);
    EXPECT_THROW(torch::nn::utils::parameters_to_vector(parameters), InvalidArgument);
    torch::optim::LBFGS lbfgs(parameters, torch::optim::LBFGSOptions(1));
    EXPECT_THROW(lbfgs.step([&] { return at::ones({}); }), InvalidArgument);
    torch::nn::utils::clip_grad_value_(parameters, 3);
    EXPECT_EQ(values_of(parameters[2].grad()).sum().item<float>(), 30);
  });
}

}  // namespace
}  // namespace lockstep::dispatch
