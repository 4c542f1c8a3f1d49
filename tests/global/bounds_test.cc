// Arguments that are invalid for whole tensors, tensors without elements, and errors on some ranks
// only.
#include "support/messages.h"
#include "tests_of_global.h"

#include <torch/torch.h>

#include <mutex>

namespace lockstep {
namespace {

using test::expect_as_plain;
using test::message_of;
using test::numbers;
using test::Put;

using T = const at::Tensor&;
using BoundsCase = at::Tensor (*)(T);

TEST(GlobalBounds, WrongArgumentsAreRefusedAsOnOneProcess) {
  const std::vector<BoundsCase> all = {
      [](T x) { return x.transpose(0, 5); },
      [](T x) { return x.transpose(-9, 0); },
      [](T x) {
        return x.permute({0, 7});
      },
      [](T x) {
        return x.permute({0, 0});
      },
      [](T x) { return x.unsqueeze(9); },
      [](T x) { return x.unsqueeze(-9); },
      [](T x) { return x.squeeze(4); },
      [](T x) { return x.slice(0, 0, 4, 0); },
      [](T x) { return x.slice(0, 0, 4, -1); },
      [](T x) { return x.slice(8, 0, 4); },
      [](T x) { return x.select(0, 4); },
      [](T x) { return x.select(5, 0); },
      [](T x) { return x.split(-1)[0]; },
      [](T x) { return x.split(0)[0]; },
      [](T x) { return x.split(2, 7)[0]; },
      [](T x) {
        return x.split_with_sizes({1, 1})[0];
      },
      [](T x) { return x.chunk(0)[0]; },
      [](T x) { return x.expand({3}); },
      [](T x) {
        return x.expand({5, 4, 7});
      },
      [](T x) { return x.view({5}); },
      [](T x) {
        return x.view({-1, -1});
      },
      [](T x) {
        return x.view({-1, 0});
      },
      [](T x) { return x.repeat({2}); },
      [](T x) { return x.sum(3); },
      [](T x) { return x.softmax(5); },
      [](T x) { return x.cumsum(-4); },
      [](T x) { return std::get<0>(x.topk(9, 1)); },
      [](T x) { return std::get<0>(x.sort(6)); },
      [](T x) { return std::get<0>(x.max(3)); },
      [](T x) { return x.norm(2, {7}); },
      [](T x) { return x.var(5, false); },
      [](T x) { return x.flip(4); },
      [](T x) { return x.roll(1, 5); },
      [](T x) { return x.select(0, 0).tril(); },
      [](T x) {
        return at::cat({x, x}, 5);
      },
      [](T x) { return x.index_select(4, at::zeros_like(x.select(1, 0)).to(at::kLong)); },
      [](T x) { return x.gather(3, at::zeros_like(x).to(at::kLong)); },
      [](T x) { return at::group_norm(x, 3); },
      [](T x) { return at::group_norm(x, 0); },
      [](T x) { return at::layer_norm(x, {9}); },
      [](T x) { return x.mm(x.select(0, 0)); },
      [](T x) {
        return at::avg_pool2d(x.unsqueeze(0), {0, 0});
      },
      [](T x) {
        return at::max_pool2d(x.unsqueeze(0), {2, 2}, {0, 0});
      },
      [](T x) {
        at::Tensor image = x.view({1, 1, 4, 4});
        return at::conv2d(image, image, {}, at::IntArrayRef({0, 0}));
      },
      [](T x) {
        return at::mse_loss(x, x.select(0, 0).unsqueeze(0).repeat({3, 1}));
      },
  };
  for (Placement one :
       {Placement(), Placement(Shard(0)), Placement(Shard(1)), Placement(Partial())})
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(std::to_string(i) + " of " + describe(one));
      EXPECT_ANY_THROW((void)all[i](numbers({4, 4})));
      run_as_threads(2, [&](Group world) {
        at::Tensor x = test::placed(numbers({4, 4}), test::mesh_of_ranks(world, {2}), {one});
        std::string text = message_of<std::exception>([&] { (void)all[i](x); });
        EXPECT_NE(text, "no error");
      });
    }
}

TEST(GlobalBounds, AnErrorOfAllRanksLeavesTheMeshAsItWas) {
  const std::vector<BoundsCase> all = {
      [](T x) { return x.max(); },
      [](T x) { return x.amin(0); },
      [](T x) { return x.argmax(0); },
      [](T x) { return std::get<0>(x.max(0)); },
      [](T x) { return std::get<0>(x.median(0)); },
      [](T x) { return std::get<0>(x.aminmax(0)); },
      [](T x) { return x.select(0, 0); },
      [](T x) { return x.index_select(0, x.new_zeros({1}, at::kLong)); },
  };
  run_as_threads(3, [&](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {3});
    for (Placement one : {Placement(), Placement(Shard(0)), Placement(Shard(1))})
      for (std::size_t i = 0; i < all.size(); ++i) {
        at::Tensor x = distribute(at::ones({0, 3}), mesh, {one});
        EXPECT_ANY_THROW((void)all[i](x)) << i << " of " << describe(x);
        EXPECT_EQ(full_tensor(distribute(at::ones({3}), mesh, {Shard(0)})).numel(), 3) << i;
      }
  });
}

TEST(GlobalBounds, TensorsWithoutElementsGiveThePlainResult) {
  const std::vector<BoundsCase> all = {
      [](T x) { return at::group_norm(x, 1); },
      [](T x) { return at::layer_norm(x, {x.size(1)}); },
      [](T x) { return at::rms_norm(x, {x.size(1)}); },
      [](T x) { return x.softmax(1) + x.log_softmax(0); },
      [](T x) { return x.mean(0) + x.sum(0); },
      [](T x) { return x.mean(); },
      [](T x) { return x.norm(); },
      [](T x) { return x.matmul(x.t()); },
      [](T x) {
        return x.view({x.size(1), x.size(0)});
      },
      [](T x) { return x.reshape({-1}).unsqueeze(0); },
      [](T x) { return x.cumsum(0).tril(); },
      [](T x) { return at::mse_loss(x, x); },
      [](T x) { return x.slice(0, 0, 9, 3); },
      [](T x) { return x.split(2, 0)[0]; },
      [](T x) {
        return x.repeat({2, 2});
      },
      [](T x) {
        return at::embedding(x.new_ones({3, 2}), x.to(at::kLong));
      },
      [](T x) { return std::get<0>(x.sort(1)); },
      [](T x) {
        at::Tensor y = x.clone().requires_grad_();
        (at::group_norm(y, 1).sum() + at::layer_norm(y, {y.size(1)}).sum()).backward();
        return y.grad();
      },
  };
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{7, 0}, {0, 7}, {0, 3}, {0, 0}})
    for (Placement one :
         {Placement(), Placement(Shard(0)), Placement(Shard(1)), Placement(Partial())})
      for (std::size_t i = 0; i < all.size(); ++i) {
        SCOPED_TRACE(std::to_string(i) + " of " + describe(one));
        expect_as_plain({3}, [&](const Put& put) { return all[i](put(at::ones(sizes), {one})); });
      }
}

// One rank has an index that is out of bounds on every rank; the other ranks see the error at their
// next operation.
TEST(GlobalBounds, AnErrorOfOneRankReachesAllRanks) {
  using Call = at::Tensor (*)(T x, T indices);
  const std::vector<std::pair<std::string, Call>> all = {
      {"index_select", [](T x, T i) { return x.index_select(0, i); }},
      {"gather",
       [](T x, T i) {
         return x.gather(0, i.view({1, 1}).expand({1, 3}));
       }},
      {"index", [](T x, T i) { return x.index({i}); }},
      {"embedding", [](T x, T i) { return at::embedding(x, i); }},
      {"scatter",
       [](T x, T i) {
         return x.scatter(0, i.view({1, 1}).expand({1, 3}), 1);
       }},
  };
  for (const auto& [name, call] : all)
    for (std::int64_t rows : {0, 2}) {
      std::mutex mutex;
      int failed = 0, refused = 0;
      std::string messages;
      run_as_threads(3, [&, call = call, rows](Group world) {
        Mesh mesh = test::mesh_of_ranks(world, {3});
        at::Tensor x = distribute(at::ones({rows, 3}), mesh, {Shard(1)});
        at::Tensor i = distribute(at::full({1}, 5, at::kLong), mesh, {Shard(0)});
        std::string message;
        try {
          (void)call(x, i);
        } catch (const std::exception& error) {
          message = error.what();
        }
        const bool is_refused = !message.empty();
        try {  // the mesh's own group, which no operation on the tensors has used
          at::Tensor numbers = at::ones({3});
          world.all_reduce(numbers).wait();
        } catch (const std::exception& error) {
          if (message.empty()) message = error.what();
        }
        std::lock_guard lock(mutex);
        failed += message.empty() ? 0 : 1;
        refused += is_refused ? 1 : 0;
        messages += "\n" + message.substr(0, message.find('\n'));
      });
      if (rows == 0) EXPECT_EQ(refused, 3) << name << messages;
      EXPECT_EQ(failed, 3) << name << " of " << rows << " rows" << messages;
    }
}

}  // namespace
}  // namespace lockstep
