// An operation on a global tensor and a tensor of another layout (sparse, for example) throws, even
// in place.
#include "support/messages.h"
#include "tests_of_global.h"

#include <torch/types.h>

namespace lockstep {
namespace {

TEST(GlobalLayouts, OperandsInAnotherLayoutAreRefused) {
  run_as_threads(2, [](Group world) {
    const Mesh mesh = test::mesh_of_ranks(world, {2});
    const at::Tensor plain = at::eye(4);
    for (const Placements& placements : {Placements{Replicate()}, Placements{Shard(0)}}) {
      at::Tensor global = distribute(plain, mesh, placements);
      for (const at::Tensor& other : {plain.to_sparse(), plain.to_sparse_csr()}) {
        const auto refused = [&](const std::function<void()>& action) {
          test::expect_words(test::message_of<InvalidArgument>(action),
                             {"sparse tensor beside a global", "make it dense first"});
        };
        refused([&] { (void)at::mm(other, global); });
        refused([&] { (void)(global + other); });
        refused([&] { global.add_(other); });
      }
      EXPECT_TRUE(full_tensor(global).equal(plain));
    }
  });
}

}  // namespace
}  // namespace lockstep
