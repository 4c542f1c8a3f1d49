// Operations on global tensors refuse the same calls as on plain tensors, see earlier writes, and
// do not leave other ranks waiting.
#include "global/decide.h"
#include "global/mesh_context.h"
#include "support/messages.h"
#include "tests_of_global.h"

#include <torch/torch.h>

#include <limits>

namespace lockstep {
namespace {

using test::expect_as_plain;
using test::expect_words;
using test::message_of;
using test::numbers;
using test::Put;

TEST(GlobalOperations, SizesThatDoNotFitAreRefused) {
  expect_as_plain({2}, [](const Put& put) {
    return put(numbers({2}), {Replicate()}) + put(numbers({4}), {Shard(0)});
  });
  expect_as_plain({2}, [](const Put& put) {
    return put(numbers({3, 1}), {Replicate()}).mm(put(numbers({2, 2}), {Shard(0)}));
  });
  expect_as_plain({2}, [](const Put& put) {
    return put(numbers({1, 4}), {Shard(1)}).add_(put(numbers({2, 4}), {Shard(1)}));
  });
  expect_as_plain({2}, [](const Put& put) {
    return at::addmm(put(numbers({3}), {Replicate()}), put(numbers({4, 2}), {Shard(0)}),
                     put(numbers({2, 2}), {Replicate()}));
  });
  expect_as_plain({2}, [](const Put& put) {
    return at::addmm(put(numbers({1}), {Replicate()}), put(numbers({4, 2}), {Shard(0)}),
                     put(numbers({2, 2}), {Replicate()}));
  });
}

TEST(GlobalOperations, OutTensorsOfOtherSizesAreRefused) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::Tensor out = distribute(at::zeros({0}), mesh, {Replicate()});
    at::Tensor x = distribute(numbers({4}), mesh, {Shard(0)});
    EXPECT_THROW((void)at::add_out(out, x, x), InvalidArgument);
    EXPECT_EQ(out.numel(), 0);
  });
}

TEST(GlobalOperations, LargerOutTensorsAreRefused) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    for (Placement one : {Placement(), Placement(Shard(0))}) {
      at::Tensor x = distribute(numbers({4}), mesh, {one});
      at::Tensor out = distribute(at::zeros({3, 4}), mesh, {one});
      const std::vector<std::int64_t> before = local_tensor(out).sizes().vec();
      expect_words(message_of<InvalidArgument>([&] { (void)at::add_out(out, x, x); }),
                   {"aten::add", "[4]", "[3, 4]"});
      EXPECT_THROW((void)at::abs_out(out, x), InvalidArgument);
      EXPECT_THROW((void)at::where_out(out, x > 2, x, x), InvalidArgument);
      EXPECT_EQ(local_tensor(out).sizes(), at::IntArrayRef(before));
      EXPECT_TRUE(full_tensor(out).equal(at::zeros({3, 4})));
    }
  });
}

TEST(GlobalOperations, RanksAgreeOnWhetherATensorEqualsItself) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::Tensor whole = numbers({4});
    at::Tensor x = distribute(whole, mesh, {Shard(0)});
    EXPECT_TRUE(at::equal(x, x));
    whole[0] = std::numeric_limits<float>::quiet_NaN();
    at::Tensor with_nan = distribute(whole, mesh, {Shard(0)});
    EXPECT_EQ(at::equal(with_nan, with_nan), at::equal(whole, whole));
  });
}

TEST(GlobalOperations, AnEmptyListOfDimsIsThatOfOneProcess) {
  for (Placement one : {Placement(), Placement(Shard(0)), Placement(Partial())})
    expect_as_plain({2}, [one](const Put& put) {
      at::Tensor x = put(numbers({3, 1, 4}) - 3, {one});
      const at::IntArrayRef none{};
      return at::cat({x.squeeze(none), x.any(none).to(at::kFloat), x.all(none).to(at::kFloat),
                      x.sum(none, /*keepdim=*/true).expand({1, 1, 4})});
    });
}

TEST(GlobalOperations, ATensorWithoutDimsIsNotSplit) {
  expect_as_plain(
      {2}, [](const Put& put) { return at::unsafe_split(put(at::ones({}), {Replicate()}), 1)[0]; });
  expect_as_plain({2}, [](const Put& put) {
    return at::unsafe_split_with_sizes(put(at::ones({}), {Replicate()}), {1})[0];
  });
}

TEST(GlobalOperations, AnIndexThatNoRankHasIsRefused) {
  for (std::int64_t wrong : {6, 99, -1})
    expect_as_plain({2}, [=](const Put& put) {
      at::Tensor indices = at::tensor({std::int64_t{1}, wrong});
      return at::embedding(put(numbers({6, 2}), {Shard(0)}), put(indices, {Replicate()}));
    });
}

TEST(GlobalOperations, AViewThatWasRedistributedIsNotReadAfterItsBaseWasWritten) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::NoGradGuard no_grad;
    at::Tensor x = distribute(numbers({2, 4}), mesh, {Shard(1)});
    at::Tensor copied = x.select(1, 2), of_copy = copied.view({2, 1});
    EXPECT_TRUE(full_tensor(copied).equal(numbers({2, 4}).select(1, 2)));
    x.zero_();
    expect_words(message_of<InvalidArgument>([&] { (void)full_tensor(copied); }),
                 {"written since", "make the view again"});
    EXPECT_THROW((void)(of_copy + 1), InvalidArgument);
    EXPECT_TRUE(full_tensor(x.select(1, 2)).equal(at::zeros({2})));
    // A view in the same memory sees the write.
    at::Tensor shared = x.t();
    x.add_(2);
    EXPECT_TRUE(full_tensor(shared).equal(at::full({4, 2}, 2.0F)));
    EXPECT_THROW((void)(distribute(numbers({4}), mesh, {Shard(0)}).select(0, 1).add_(1)),
                 InvalidArgument);
  });
}

TEST(GlobalOperations, WritesThroughPlainTensorsAreSeen) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::NoGradGuard no_grad;
    at::Tensor mine = at::ones({3});
    at::Tensor partial = from_local(mine, mesh, {Partial()});
    EXPECT_TRUE(full_tensor(at::relu(partial)).equal(at::full({3}, 2.0F)));
    mine.mul_(10);
    EXPECT_TRUE(full_tensor(at::relu(partial)).equal(at::full({3}, 20.0F)));
    mine.data().mul_(10);
    EXPECT_TRUE(full_tensor(at::relu(partial)).equal(at::full({3}, 200.0F)));
    at::Tensor cut = from_local(at::ones({2, 2}), mesh, {Shard(0)});
    at::Tensor copied = cut.select(0, 1);
    local_tensor(cut).mul_(3);
    EXPECT_THROW((void)full_tensor(copied), InvalidArgument);
    // A view of a Partial tensor reduces again after a write to its base.
    at::Tensor sums = partial * 1, view = sums.view({3, 1});
    EXPECT_TRUE(full_tensor(at::relu(view)).equal(at::full({3, 1}, 200.0F)));
    sums.mul_(0.5);
    EXPECT_TRUE(full_tensor(at::relu(view)).equal(at::full({3, 1}, 100.0F)));
    // A write through the global tensor bumps the version of the plain tensor.
    std::uint32_t version = static_cast<std::uint32_t>(mine._version());
    partial.mul_(2);
    EXPECT_GT(mine._version(), version);
  });
}

TEST(GlobalOperations, ARankThatFailsAloneEndsTheOthers) {
  std::vector<std::string> messages(2);
  EXPECT_ANY_THROW(run_as_threads(2, [&](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::Tensor table = distribute(numbers({4, 3}), mesh, {Replicate()});
    at::Tensor indices = at::tensor({std::int64_t{1}, std::int64_t{7}});
    try {
      at::Tensor rows = at::embedding(table, distribute(indices, mesh, {Shard(0)}));
      (void)full_tensor(rows);
    } catch (const std::exception& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
      throw;
    }
  }));
  expect_words(messages[0], {"aten::embedding", "failed on rank 1", "index out of range"});
  expect_words(messages[1], {"index out of range"});
}

// The second step makes no new decision, although the numbers in its formulas differ.
TEST(GlobalOperations, NumbersThatChangeFromStepToStepMakeNoDecisions) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::Tensor w = distribute(numbers({4, 3}), mesh, {Shard(0)}).requires_grad_();
    at::Tensor v = distribute(numbers({3}), mesh, {Replicate()}).requires_grad_();
    torch::optim::Adam adam({w, v}, torch::optim::AdamOptions(0.1).weight_decay(0.01));
    auto& decisions = global::MeshContext::of(mesh).decisions();
    std::int64_t after_first = 0;
    for (int step = 0; step < 4; ++step) {
      adam.zero_grad();
      w.matmul(v).pow(2).sum().backward();
      adam.step();
      at::NoGradGuard no_grad;
      std::vector<at::Tensor> all = {w, v};
      at::_foreach_mul_(all, std::vector<at::Scalar>{1.0 - 0.01 * step, 1.0 - 0.02 * step});
      at::_foreach_addcdiv_(all, all, all, std::vector<at::Scalar>{0.01 * step, 0.02 * step});
      if (step == 0) after_first = decisions.added();
    }
    // The first step creates the state, and the second step updates it.
    EXPECT_LE(decisions.added(), after_first + 4);
  });
}

}  // namespace
}  // namespace lockstep
