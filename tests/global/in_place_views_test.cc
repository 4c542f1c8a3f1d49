// Operations that change a tensor's sizes in place, writes through views, and operations that need
// the memory of a tensor and are therefore refused, with and without replicate_unknown.
#include "support/messages.h"
#include "tests_of_global.h"

#include <torch/torch.h>

namespace lockstep {
namespace {

using test::expect_words;
using test::message_of;
using test::numbers;

using T = const at::Tensor&;
using ViewProgram = std::function<at::Tensor(T)>;

// Expects the values and gradients of a single process for a program on a tensor [4, 1, 3] in every
// placement.
void expect_view_as_plain(const std::string& name, const ViewProgram& program) {
  const at::Tensor whole = numbers({4, 1, 3}).to(at::kDouble).sin();
  at::Tensor plain = whole.clone().requires_grad_();
  const at::Tensor expected = program(plain);
  expected.square().sum().backward();
  run_as_threads(2, [&](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    for (bool unknown : {false, true}) {
      set_global_options(mesh, {.replicate_unknown = unknown});
      for (const Placements& where : test::all_placements(3, 1)) {
        at::Tensor x = test::placed(whole, mesh, where).requires_grad_();
        const std::string what = name + " of " + describe(x);
        try {
          at::Tensor found = program(x);
          ASSERT_EQ(found.sizes(), expected.sizes()) << what;
          EXPECT_TRUE(full_tensor(found.detach()).allclose(expected.detach())) << what;
          found.square().sum().backward();
          EXPECT_TRUE(full_tensor(x.grad()).allclose(plain.grad())) << what;
        } catch (const std::exception& error) {
          ADD_FAILURE() << what << ": " << error.what();
          return;
        }
      }
    }
  });
}

TEST(InPlaceViews, GiveTheViewAndItsGradient) {
  const std::vector<std::pair<std::string, ViewProgram>> all = {
      {"squeeze_", [](T x) { return (x * 2).squeeze_(); }},
      {"squeeze_ of a dim", [](T x) { return (x * 2).squeeze_(1); }},
      {"squeeze_ of dims",
       [](T x) {
         return (x * 2).squeeze_(at::IntArrayRef({0, 1}));
       }},
      {"unsqueeze_", [](T x) { return (x * 2).unsqueeze_(0); }},
      {"transpose_", [](T x) { return (x * 2).transpose_(0, 2); }},
      {"t_", [](T x) { return (x * 2).squeeze(1).t_(); }},
      {"swapdims_", [](T x) { return (x * 2).swapdims_(0, -1); }},
      {"swapaxes_", [](T x) { return (x * 2).swapaxes_(0, 1); }},
      {"one after the other",
       [](T x) { return (x * 2).squeeze_(1).t_().unsqueeze_(-1).mul(3).transpose_(0, 1); }},
      {"detach_", [](T x) { return (x * 2).detach_() * x; }},
  };
  for (const auto& [name, program] : all) expect_view_as_plain(name, program);
}

TEST(InPlaceViews, ShareMemoryWithOtherViews) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::NoGradGuard no_grad;
    at::Tensor x = distribute(at::ones({4, 1, 3}), mesh, {Shard(0)}), seen = x.view({4, 3});
    x.squeeze_(1).t_();
    EXPECT_EQ(describe(x), "Float [3, 4] on mesh a=2: [Shard(1)], local [3, 2]");
    x.mul_(3);
    EXPECT_TRUE(full_tensor(seen).equal(at::full({4, 3}, 3.0F)));
    seen.add_(1);
    EXPECT_TRUE(full_tensor(x).equal(at::full({3, 4}, 4.0F)));
    EXPECT_THROW((void)x.transpose_(0, 5), InvalidArgument);
    EXPECT_EQ(x.sizes(), at::IntArrayRef({3, 4}));
  });
}

TEST(InPlaceViews, WhatNeedsMemoryIsRefusedInOneLine) {
  using Call = void (*)(at::Tensor x);
  const std::vector<std::pair<std::string, Call>> all = {
      {"resize_",
       [](at::Tensor x) {
         x.resize_({2, 3});
       }},
      {"resize_as_", [](at::Tensor x) { x.resize_as_(x); }},
      {"as_strided", [](at::Tensor x) { (void)x.as_strided({2}, {1}); }},
      {"as_strided_", [](at::Tensor x) { x.as_strided_({2}, {1}); }},
      {"as_strided_scatter",
       [](at::Tensor x) { (void)x.as_strided_scatter(x.flatten(), {12}, {1}); }},
      {"as_strided_copy", [](at::Tensor x) { (void)at::as_strided_copy(x, {2}, {1}); }},
      {"set_", [](at::Tensor x) { x.set_(); }},
      {"set_", [](at::Tensor x) { x.set_(x); }},
  };
  run_as_threads(2, [&](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    for (bool unknown : {false, true}) {
      set_global_options(mesh, {.replicate_unknown = unknown});
      for (Placement one : {Placement(), Placement(Shard(0)), Placement(Partial())})
        for (const auto& [name, call] : all) {
          at::Tensor x = test::placed(at::ones({4, 3}), mesh, {one});
          std::string text = message_of<InvalidArgument>([&] { call(x * 1); });
          expect_words(text, {"global tensor", "memory"});
          EXPECT_EQ(text.find('\n'), std::string::npos) << name << ": " << text;
          EXPECT_TRUE(full_tensor(x).equal(at::ones({4, 3}))) << name;
        }
    }
  });
}

TEST(InPlaceViews, OperationsWithoutARuleWriteReplicatedTensors) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    set_global_options(mesh, {.replicate_unknown = true, .replicate_plain = true});
    at::NoGradGuard no_grad;
    const at::Tensor whole = numbers({4, 4});
    for (Placement one : {Placement(), Placement(Shard(0)), Placement(Partial())}) {
      at::Tensor x = test::placed(whole, mesh, {one});
      EXPECT_TRUE(full_tensor(x.renorm_(2, 0, 3)).allclose(whole.clone().renorm_(2, 0, 3)));
      EXPECT_EQ(placements(x)[0], one);
      // An out= tensor of other sizes would be resized.
      at::Tensor out = test::placed(at::zeros({0}), mesh, {Replicate()});
      at::Tensor y = test::placed(at::ones({2, 3}), mesh, {one.is_shard() ? one : Replicate()});
      EXPECT_THROW((void)at::linalg_cross_out(out, y, y), InvalidArgument);
      EXPECT_EQ(full_tensor(out).numel(), 0);
      EXPECT_TRUE(
          full_tensor(x.flatten().quantile(0.3)).allclose(full_tensor(x).flatten().quantile(0.3)));
    }
  });
}

TEST(InPlaceViews, AWriteThroughAViewHasAGradient) {
  const std::vector<std::pair<std::string, ViewProgram>> all = {
      {"rows",
       [](T x) {
         at::Tensor o = x.new_zeros({6, 1, 3});
         o.slice(0, 1, 5).copy_(x);
         o.select(0, 2).mul_(2);
         return o * at::arange(6, at::kDouble).sum();
       }},
      {"columns",
       [](T x) {
         at::Tensor o = x.new_zeros({4, 1, 7});
         o.slice(2, 2, 5).copy_(x);
         o.slice(2, 3, 4).add_(x.slice(2, 0, 1));
         return o;
       }},
      {"a view of what is written",
       [](T x) {
         at::Tensor o = x * 2, v = o.view({12});
         o.mul_(3);
         return v.sin();
       }},
      {"transposed",
       [](T x) {
         at::Tensor o = x.new_zeros({3, 1, 4});
         o.transpose(0, 2).add_(x);
         return o.exp();
       }},
      {"circular padding",
       [](T x) {
         namespace F = torch::nn::functional;
         return F::pad(x, F::PadFuncOptions({2, 2}).mode(torch::kCircular));
       }},
  };
  for (const auto& [name, program] : all) {
    const at::Tensor whole = numbers({4, 1, 3}).to(at::kDouble).sin();
    at::Tensor plain = whole.clone().requires_grad_();
    const at::Tensor expected = program(plain);
    expected.square().sum().backward();
    run_as_threads(2, [&, program = program, name = name](Group world) {
      Mesh mesh = test::mesh_of_ranks(world, {2});
      for (bool unknown : {false, true}) {
        set_global_options(mesh, {.replicate_unknown = unknown});
        for (const Placements& where : test::all_placements(3, 1)) {
          at::Tensor x = test::placed(whole, mesh, where).requires_grad_();
          const std::string what = name + " of " + describe(x);
          at::Tensor found;
          try {
            found = program(x);
          } catch (const InvalidArgument& error) {  // the view's dim is sharded
            expect_words(error.what(), {"view", "clone()"});
            continue;
          }
          EXPECT_TRUE(full_tensor(found.detach()).allclose(expected.detach())) << what;
          try {
            found.square().sum().backward();
          } catch (const InvalidArgument& error) {
            expect_words(error.what(), {"view", "clone()"});
            continue;
          }
          EXPECT_TRUE(full_tensor(x.grad()).allclose(plain.grad()))
              << what << full_tensor(x.grad()) << plain.grad();
        }
      }
    });
  }
}

}  // namespace
}  // namespace lockstep
