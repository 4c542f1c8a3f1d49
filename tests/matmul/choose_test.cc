// Tests which products go to oneDNN, and that all others are the same as without registered
// kernels.
#include "matmul/chosen.h"
#include "support/messages.h"
#include "support/processes.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/init.h>

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include <unistd.h>

using namespace lockstep;
using test::by;
using test::Chosen;
using test::message_of;
using test::onednn_products_of;

namespace {

struct Case {
  std::string name;
  std::function<at::Tensor()> product;
};

at::Tensor square(at::ScalarType type = at::kFloat) {
  torch::manual_seed(6);
  return at::randn({256, 256}).to(type);
}

// Large matrices, so that only the property under test keeps them from oneDNN.
std::vector<Case> others() {
  const at::Tensor a = square(), bias = at::randn({256});
  const at::Tensor nan = at::full({256}, std::numeric_limits<float>::quiet_NaN());
  return {
      {"small", [=] { return at::mm(a.narrow(0, 0, 8), a); }},
      {"one row",
       [=] {
         return at::mm(at::ones({1, 4096}), at::ones({4096, 4096}));
       }},
      {"no row", [=] { return at::mm(a.narrow(0, 0, 0), a); }},
      {"nothing to sum",
       [=] {
         return at::mm(at::empty({2048, 0}), at::empty({0, 2048}));
       }},
      {"nothing to sum, with bias",
       [=] {
         return at::addmm(bias, at::empty({256, 0}), at::empty({0, 256}));
       }},
      {"columns of a wider matrix",
       [=] { return at::mm(a.narrow(1, 0, 200), a.narrow(0, 0, 200)); }},
      {"every second row",
       [=] {
         return at::mm(at::ones({512, 256}).slice(0, 0, 512, 2), a);
       }},
      {"an expanded row",
       [=] {
         return at::mm(bias.expand({256, 256}), a);
       }},
      {"an expanded batch",
       [=] {
         return at::bmm(a.expand({4, 256, 256}), at::ones({4, 256, 256}));
       }},
      {"double", [=] { return at::mm(square(at::kDouble), square(at::kDouble)); }},
      {"bfloat16", [=] { return at::mm(square(at::kBFloat16), square(at::kBFloat16)); }},
      {"alpha", [=] { return at::addmm(bias, a, a, 1, 0.5); }},
      {"beta", [=] { return at::addmm(bias, a, a, 0.5, 1); }},
      {"beta of 0 and a bias of NaN", [=] { return at::addmm(nan, a, a, 0, 1); }},
      {"a bias of two dims", [=] { return at::addmm(a, a, a); }},
      {"a bias of one element", [=] { return at::addmm(at::ones({1}), a, a); }},
      {"a bias with gaps", [=] { return at::addmm(at::ones({512}).slice(0, 0, 512, 2), a, a); }},
      {"a scalar bias", [=] { return at::addmm(at::scalar_tensor(2.0), a, a); }},
      {"sparse", [=] { return at::mm(a.to_sparse(), a); }},
      {"a negative view", [=] { return at::mm(at::_neg_view(a), a); }},
      {"meta", [=] { return at::zeros_like(at::mm(a.to(at::kMeta), a.to(at::kMeta)), at::kCPU); }},
  };
}

TEST(Choose, OtherProductsHaveTheBitsOfLibTorchs) {
  LOCKSTEP_NEEDS_ONEDNN();
  for (const Case& each : others()) {
    const at::Tensor expected = by(false, each.product);
    at::Tensor found;
    const auto taken = onednn_products_of([&] { found = by(true, each.product); });
    // A negative view is converted to an ordinary matrix before it reaches a kernel.
    EXPECT_EQ(taken, each.name == "a negative view" ? 1U : 0U) << each.name;
    EXPECT_EQ(found.sizes(), expected.sizes()) << each.name;
    EXPECT_EQ(found.strides(), expected.strides()) << each.name;
    if (taken == 0U) EXPECT_TRUE(found.equal(expected)) << each.name;
    if (taken != 0U) EXPECT_TRUE(found.allclose(expected, 1e-4, 1e-4)) << each.name;
  }
}

TEST(Choose, ErrorsAreLibTorchs) {
  LOCKSTEP_NEEDS_ONEDNN();
  const at::Tensor a = square();
  const std::function<void()> wrong[] = {
      [=] { static_cast<void>(at::mm(a, a.narrow(0, 0, 100))); },
      [=] {
        static_cast<void>(at::mm(a, a.view({1, 256, 256})));
      },
      [=] { static_cast<void>(at::mm(a, square(at::kDouble))); },
      [=] { static_cast<void>(at::addmm(at::ones({255}), a, a)); },
      [=] {
        static_cast<void>(at::bmm(at::ones({4, 256, 256}), at::ones({5, 256, 256})));
      }};
  for (const auto& call : wrong) {
    const auto first_line = [&] {
      const std::string text = message_of<c10::Error>(call);
      return text.substr(0, text.find('\n'));
    };
    const std::string expected = by(false, first_line);
    EXPECT_EQ(expected.find("no error"), std::string::npos);
    EXPECT_EQ(by(true, first_line), expected);
  }
}

TEST(Choose, OffIsLibTorchs) {
  const at::Tensor a = square();
  const at::Tensor before = at::mm(a, a);
  { const Chosen on(matmul::onednn::missing().empty()); }
  EXPECT_FALSE(matmul::is_onednn());
  EXPECT_EQ(matmul::library(), "LibTorch's own");
  EXPECT_EQ(onednn_products_of([&] { EXPECT_TRUE(at::equal(at::mm(a, a), before)); }), 0U);
}

TEST(Choose, OnIsOneDnns) {
  LOCKSTEP_NEEDS_ONEDNN();
  const Chosen on(true);
  const Chosen again(true);
  EXPECT_TRUE(matmul::is_onednn());
  EXPECT_EQ(matmul::library(), "oneDNN");
  const at::Tensor a = square();
  EXPECT_EQ(onednn_products_of([&] { static_cast<void>(at::mm(a, a)); }), 1U);
}

TEST(Choose, TheUsersSwitchOfOneDnnHolds) {
  LOCKSTEP_NEEDS_ONEDNN();
  const Chosen on(true);
  const at::Tensor a = square();
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_EQ(onednn_products_of([&] { static_cast<void>(at::mm(a, a)); }), 0U);
  at::globalContext().setUserEnabledMkldnn(true);
}

TEST(Choose, ModesOfLibTorchHold) {
  LOCKSTEP_NEEDS_ONEDNN();
  const Chosen on(true);
  torch::nn::Linear layer(256, 256);
  const at::Tensor input = at::randn({64, 256});
  const at::Tensor expected = layer(input);
  EXPECT_TRUE(expected.requires_grad());
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(layer(input).requires_grad());
  }
  {
    const c10::InferenceMode inference;
    const at::Tensor found = layer(input);
    EXPECT_TRUE(found.is_inference());
    EXPECT_TRUE(found.equal(expected));
  }
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_EQ(onednn_products_of([&] { EXPECT_EQ(layer(input).scalar_type(), at::kBFloat16); }), 0U);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_TRUE(layer(input).equal(expected));
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST(Choose, ForkedChildrenMultiplyToo) {
  LOCKSTEP_NEEDS_ONEDNN();
  const Chosen on(true);
  const at::Tensor a = square();
  const at::Tensor expected = at::mm(a, a);
  test::expect_ranks(2, [&](int) {
    EXPECT_EQ(onednn_products_of([&] { EXPECT_TRUE(at::equal(at::mm(a, a), expected)); }), 1U);
    EXPECT_EQ(onednn_products_of([&] { static_cast<void>(at::mm(a, a.narrow(1, 0, 128))); }), 0U);
    const at::Tensor other = at::randn({100, 256});  // a shape that the parent has not used
    EXPECT_TRUE(at::mm(other, a).allclose(by(false, [&] { return at::mm(other, a); }), 1e-4, 1e-4));
  });
}

TEST(Choose, TheVariableAndTheOptionDecide) {
  const bool possible = matmul::onednn::missing().empty();
  const auto chosen_by = [&](const char* variable, std::optional<bool> option) {
    ::setenv("LOCKSTEP_ONEDNN_MATMUL", variable, 1);
    matmul::choose(option);
    const bool found = matmul::is_onednn();
    ::unsetenv("LOCKSTEP_ONEDNN_MATMUL");
    matmul::choose(false);
    return found;
  };
  EXPECT_FALSE(chosen_by("off", {}));
  EXPECT_EQ(chosen_by("", {}), possible && matmul::mkl_takes_narrow_way());
  if (possible) {
    EXPECT_TRUE(chosen_by("on", {}));
    EXPECT_FALSE(chosen_by("on", false));
    EXPECT_TRUE(chosen_by("off", true));
  } else {
    EXPECT_THROW(chosen_by("on", {}), BadInput);
  }
  test::expect_words(message_of<BadInput>([&] { chosen_by("perhaps", {}); }),
                     {"LOCKSTEP_ONEDNN_MATMUL", "perhaps"});
  ::unsetenv("LOCKSTEP_ONEDNN_MATMUL");
}

TEST(Choose, InitChoosesAndTheLastOneHolds) {
  LOCKSTEP_NEEDS_ONEDNN();
  test::expect_ranks(1, [](int) {
    const Group first = init({.onednn_matmul = true});
    EXPECT_TRUE(matmul::is_onednn());
    const Group second = init({.onednn_matmul = false});
    EXPECT_FALSE(matmul::is_onednn());
    static_cast<void>(init());
    EXPECT_EQ(matmul::is_onednn(), matmul::mkl_takes_narrow_way());
    torch::nn::Linear layer(256, 256);
    const at::Tensor loss = (layer(square()) * square()).sum();
    static_cast<void>(init({.onednn_matmul = true}));  // between forward and backward
    EXPECT_EQ(onednn_products_of([&] { loss.backward(); }), 1U);
  });
}

// LibTorch warns when a kernel replaces another, but only once per process: run in a new process.
TEST(ChooseDeathTest, UsersSeeNoWarning) {
  LOCKSTEP_NEEDS_ONEDNN();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        matmul::choose(true);
        const at::Tensor a = square();
        ::_exit(onednn_products_of([&] { static_cast<void>(at::mm(a, a)); }) == 1 ? 0 : 1);
      },
      testing::ExitedWithCode(0), testing::Eq(""));
}

}  // namespace
