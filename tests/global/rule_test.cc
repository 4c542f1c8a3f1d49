#include <lockstep/base/error.h>
#include <lockstep/global/rule.h>

#include "support/messages.h"
#include "support/torch/backend_test.h"
#include "tests_of_global.h"

#include <torch/library.h>
#include <torch/torch.h>

namespace lockstep {
namespace {

using test::expect_words;
using test::message_of;

// Multiplies rows by one number per column, as an operation of an extension.
at::Tensor scale_columns(const at::Tensor& x, const at::Tensor& factors) { return x * factors; }
// Has no rule.
at::Tensor reverse(const at::Tensor& x) { return x.flip(0); }

TORCH_LIBRARY(lockstep_test_global, library) {
  library.def("scale_columns(Tensor x, Tensor factors) -> Tensor");
  library.def("reverse(Tensor x) -> Tensor");
  library.def("badly_ruled(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(lockstep_test_global, CPU, library) {
  library.impl("scale_columns", &scale_columns);
  library.impl("reverse", &reverse);
  library.impl("badly_ruled", &reverse);
}

template <class... Tensors>
at::Tensor call(const char* name, const Tensors&... tensors) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<at::Tensor(const Tensors&...)>()
      .call(tensors...);
}

TEST(Rules, AreRegisteredByALine) {
  register_rule("lockstep_test_global::scale_columns", "r c, c -> r c");
  run_as_threads(2, [](Group world) {
    Mesh mesh(world, {{"tp", 2}});
    at::Tensor x = at::arange(12, at::kFloat).view({3, 4}), f = at::arange(4, at::kFloat);
    for (Placement one : {Placement(), Placement(Shard(0)), Placement(Shard(1))}) {
      at::Tensor y = call("lockstep_test_global::scale_columns", distribute(x, mesh, {one}),
                          distribute(f, mesh, {Replicate()}));
      EXPECT_TRUE(full_tensor(y).equal(x * f));
      EXPECT_EQ(placements(y)[0], one);
    }
    EXPECT_EQ(traffic(mesh).all_gathers, 2);  // from full_tensor()
  });
}

TEST(Rules, AnOperationWithoutOneIsALineThatShowsHowToAddOne) {
  run_as_threads(2, [](Group world) {
    Mesh mesh(world, {{"tp", 2}});
    at::Tensor x = distribute(at::arange(6), mesh, {Shard(0)});
    std::string text =
        message_of<InvalidArgument>([&] { call("lockstep_test_global::reverse", x); });
    expect_words(
        text, {"lockstep_test_global::reverse", "no rule", "[Shard(0)]", "tp=2",
               "lockstep::register_rule(\"lockstep_test_global::reverse\"", "replicate_unknown"});
    EXPECT_EQ(text.find('\n'), std::string::npos);
    set_global_options(mesh, {.replicate_unknown = true});
    at::Tensor y = call("lockstep_test_global::reverse", x);
    EXPECT_EQ(placements(y)[0], Replicate());
    EXPECT_TRUE(full_tensor(y).equal(at::arange(6).flip(0)));
  });
}

// In backward, LibTorch's formula would need another operation, which has no rule.
TEST(Rules, AnOperationWhoseGradientHasNoneIsRefusedBeforeItRuns) {
  register_rule("aten::reflection_pad1d", [](const RuleCall& call) {
    std::vector<std::int64_t> sizes = call.sizes(0), pad = call.argument(1).toIntVector();
    sizes.back() += pad[0] + pad[1];
    Rule rule;
    rule.operands = {{rule.add(), Rule::whole}};
    rule.results = {{sizes, rule.operands[0]}};
    return rule;
  });
  run_as_threads(2, [](Group world) {
    Mesh mesh(world, {{"tp", 2}});
    const at::Tensor whole = at::arange(8, at::kFloat).view({2, 4});
    at::Tensor x = distribute(whole, mesh, {Shard(0)}).requires_grad_();
    std::string text = message_of<InvalidArgument>([&] { (void)at::reflection_pad1d(x, {1, 1}); });
    expect_words(text, {"aten::reflection_pad1d", "gradient aten::reflection_pad1d_backward",
                        "NoGradGuard", "replicate_unknown"});
    EXPECT_EQ(text.find('\n'), std::string::npos);
    at::NoGradGuard no_grad;
    EXPECT_TRUE(
        full_tensor(at::reflection_pad1d(x, {1, 1})).equal(at::reflection_pad1d(whole, {1, 1})));
  });
}

TEST(Rules, AWrongOneIsFoundAtTheFirstCall) {
  register_rule("lockstep_test_global::badly_ruled", "a -> a a");
  Mesh mesh(Group(), {{"tp", 1}});
  at::Tensor x = distribute(at::arange(6), mesh, {Replicate()});
  expect_words(message_of<InvalidArgument>([&] { call("lockstep_test_global::badly_ruled", x); }),
               {"badly_ruled", "its rule"});
  register_rule("lockstep_test_global::badly_ruled", [](const RuleCall& call) {
    Rule rule;
    rule.operands.emplace_back(1, rule.add());
    rule.results = {{call.sizes(0), rule.operands[0]}};
    rule.more.push_back({{Shard(0), Shard(0)}, {Shard(0)}});
    return rule;
  });
  expect_words(message_of<InvalidArgument>([&] { call("lockstep_test_global::badly_ruled", x); }),
               {"badly_ruled", "each choice of its rule", "found 2 and 1"});
  expect_words(message_of<InvalidArgument>([] { register_rule("my::op", "a b"); }), {"->", "a b"});
  expect_words(message_of<InvalidArgument>([] { register_rule("my::op", "a+ -> a"); }), {"a+"});
  expect_words(message_of<InvalidArgument>([] { register_rule("op", "a -> a"); }), {"aten::mm"});
}

TEST(Rules, PlainTensorsAndTwoMeshesAreOneLine) {
  Mesh mesh(Group(), {{"tp", 1}}), other(Group(), {{"dp", 1}});
  at::Tensor x = distribute(at::ones({2, 2}), mesh, {Shard(0)});
  at::Tensor plain = at::ones({2, 2});
  expect_words(message_of<InvalidArgument>([&] { (void)(x + plain); }),
               {"aten::add", "tp=1", "plain Float tensor of sizes [2, 2]", "distribute()"});
  expect_words(message_of<InvalidArgument>([&] { plain.add_(x); }), {"aten::add_", "plain"});
  at::Tensor y = distribute(at::ones({2, 2}), other, {Shard(0)});
  expect_words(message_of<InvalidArgument>([&] { (void)(x + y); }), {"tp=1", "dp=1", "one mesh"});
  set_global_options(mesh, {.replicate_plain = true});
  EXPECT_TRUE(full_tensor(x + plain).equal(plain * 2));
  expect_words(message_of<InvalidArgument>([&] { plain.add_(x); }), {"aten::add_", "plain"});
}

TEST(Rules, AWriteToAViewThatWasRedistributedIsRefused) {
  run_as_threads(2, [](Group world) {
    Mesh mesh(world, {{"tp", 2}});
    at::NoGradGuard no_grad;
    at::Tensor x = distribute(at::ones({4, 2}), mesh, {Shard(0)});
    x.t().mul_(2);
    EXPECT_TRUE(full_tensor(x).equal(at::full({4, 2}, 2.0F)));
    expect_words(message_of<InvalidArgument>([&] { x.select(0, 1).mul_(2); }),
                 {"aten::mul_", "view", "clone()"});
  });
}

TEST(Rules, ChooseTheFewestBytes) {
  run_as_threads(2, [](Group world) {
    Mesh mesh(world, {{"tp", 2}});
    auto make = [&](std::vector<std::int64_t> sizes, Placement one) {
      return distribute(at::ones(sizes), mesh, {one});
    };
    // Sharded by columns, then by rows: one all_reduce, when the values are needed.
    at::Tensor x = make({4, 8}, Replicate());
    reset_traffic(mesh);
    at::Tensor h = at::relu(at::linear(x, make({6, 8}, Shard(0)), make({6}, Shard(0))));
    EXPECT_EQ(placements(h)[0], Shard(1));
    at::Tensor y = at::linear(h, make({8, 6}, Shard(1)), make({8}, Replicate()));
    EXPECT_TRUE(placements(y)[0].is_partial());
    reset_traffic(mesh);
    at::Tensor z = x + y;
    EXPECT_EQ(placements(z)[0], Replicate());
    EXPECT_EQ(traffic(mesh).all_reduces, 1);
    (void)at::relu(y);  // y is not reduced again
    EXPECT_EQ(traffic(mesh).calls(), 1);
    // The smaller operand is redistributed.
    at::Tensor large = make({64, 4}, Shard(0)), small = make({4, 4}, Shard(0));
    reset_traffic(mesh);
    EXPECT_EQ(placements(large.mm(small))[0], Shard(0));
    EXPECT_EQ(traffic(mesh).bytes, 4 * 4 * 4 / 2);
  });
}

TEST(Rules, DropoutDrawsWhatOneProcessDoes) {
  test::run_group(test::BackendKind::shm, 3, [](Group world) {
    Mesh mesh(world, {{"dp", 3}});
    at::Tensor x = at::ones({5, 4});
    torch::manual_seed(4);
    at::Tensor expected = at::dropout(x, 0.5, true), drawn = at::rand({5, 4});
    for (Placement one : {Placement(), Placement(Shard(0)), Placement(Shard(1))}) {
      at::Tensor global = distribute(x, mesh, {one});
      torch::manual_seed(4);
      EXPECT_TRUE(full_tensor(at::dropout(global, 0.5, true)).equal(expected)) << describe(global);
      EXPECT_TRUE(full_tensor(at::rand_like(global)).equal(drawn)) << describe(global);
    }
  });
}

TEST(Rules, ListOperationsTreatElementsApart) {
  run_as_threads(2, [](Group world) {
    Mesh mesh(world, {{"dp", 2}});
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> xs = {distribute(at::ones({3, 2}), mesh, {Shard(0)}),
                                  distribute(at::ones({2, 2}), mesh, {Replicate()})};
    std::vector<at::Tensor> ys = {distribute(at::full({3, 2}, 2.0F), mesh, {Shard(1)}),
                                  distribute(at::full({2, 2}, 3.0F), mesh, {Shard(0)})};
    at::_foreach_mul_(xs, 2.0);
    at::_foreach_add_(xs, ys, 0.5);
    EXPECT_EQ(placements(xs[0])[0], Shard(0));
    EXPECT_TRUE(full_tensor(xs[0]).equal(at::full({3, 2}, 3.0F)));
    EXPECT_TRUE(full_tensor(xs[1]).equal(at::full({2, 2}, 3.5F)));
    auto made = at::_foreach_sqrt(xs);
    EXPECT_EQ(placements(made[0])[0], Shard(0));
    EXPECT_TRUE(full_tensor(made[1]).equal(at::full({2, 2}, 3.5F).sqrt()));
  });
}

}  // namespace
}  // namespace lockstep
