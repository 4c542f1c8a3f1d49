// ParallelModel::evaluate() and forward() if ranks have different numbers of rows, or fail.
#include <lockstep/parallel/parallelize.h>

#include "parallel/own_net.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::test {
namespace {

const std::vector<std::vector<MeshAxis>> meshes_of_rows = {
    {{"fsdp", 2}}, {{"dp", 2}, {"tp", 2}}, {{"pp", 2}, {"fsdp", 2}}, {{"pp", 2}, {"dp", 2}}};

// The ranks have 3 and 2 rows, which they split into 4 micro-batches.
TEST(ParallelizeEvaluate, RanksMayHaveDifferentNumbersOfRows) {
  for (const auto& axes : meshes_of_rows)
    run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
      const std::string text = text_of(Composition{.axes = axes});
      OwnNet plain, net;
      ParallelModel model = parallelize(net, Mesh(world, axes), {.micro_batches = 4});
      const Group data = model.data();
      at::NoGradGuard no_grad;
      for (const std::int64_t rows : {5, 7, 9, 5}) {
        const OwnBatch batch(1, rows);
        const at::Tensor x = own_rows(data, batch.x), y = own_rows(data, batch.y);
        EXPECT_NEAR(model.evaluate({x}, {y}, mean_square).item<double>(),
                    mean_square({plain->forward(x)}, {y}).item<double>(), 1e-11)
            << text;
        expect_close_to(model.forward({x})[0], plain->forward(x), 1e-11, text);
      }
    });
}

// The sizes of the messages between stages also depend on the rows of the other ranks.
TEST(ParallelizeEvaluate, TheSameRowsBesideFewerOnAnotherRank) {
  run_group(BackendKind::local, 4, [](Group world) {
    OwnNet plain, net;
    ParallelModel model =
        parallelize(net, Mesh(world, {{"pp", 2}, {"fsdp", 2}}), {.micro_batches = 4});
    at::NoGradGuard no_grad;
    for (const std::int64_t others : {4, 1, 2}) {
      const OwnBatch batch(1, model.data().is_root() ? 4 : others);
      expect_close_to(model.forward({batch.x})[0], plain->forward(batch.x), 1e-11, "outputs");
    }
  });
}

TEST(ParallelizeEvaluate, ARankWithoutABatchIsAnErrorOnAllRanks) {
  for (const auto& axes : meshes_of_rows)
    run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
      OwnNet net;
      ParallelModel model = parallelize(net, Mesh(world, axes), {.micro_batches = 4});
      const OwnBatch two(1, 2), three(1, 3), none(1, 0);
      const bool has_rows = model.data().is_root();
      const at::Tensor x = has_rows ? two.x : none.x, y = has_rows ? two.y : none.y;
      EXPECT_EQ(message_of<InvalidArgument>([&] { (void)model.forward({x}); }),
                has_rows
                    ? "forward(): inputs: expected a batch on every rank of data(), found 2 "
                      "rows here and no batch on another rank"
                    : "forward(): inputs: expected a row for each of 4 micro-batches, found 0");
      const std::string targets = message_of<InvalidArgument>(
          [&] { (void)model.evaluate({two.x}, {has_rows ? two.y : three.y}, mean_square); });
      EXPECT_NE(targets.find(has_rows ? "no batch on another rank" : "targets: expected 2 rows"),
                std::string::npos)
          << targets;
      EXPECT_NE(message_of<InvalidArgument>([&] {
                  (void)model.forward(has_rows ? Tensors{two.x} : Tensors());
                }).find("forward(): inputs: expected"),
                std::string::npos);
      EXPECT_EQ(model.forward({two.x})[0].size(0), 2);
    });
}

// The rank of the last stage cannot send its output to the other ranks.
TEST(ParallelizeEvaluate, OutputsThatCannotBeToldEndAllRanks) {
  run_group(BackendKind::local, 4, [](Group world) {
    OwnNet net;
    const Mesh mesh(world, {{"pp", 2}, {"dp", 2}});
    ParallelPlan plan = parallel_plan(net);
    plan.pieces.back().forward = [](const Tensors& inputs) { return Tensors(100, inputs[0]); };
    ParallelModel model = parallelize(net.ptr(), mesh, plan);
    const OwnBatch batch(1, 4);
    try {
      (void)model.forward({batch.x});
      ADD_FAILURE() << "no error";
    } catch (const Aborted& error) {
      EXPECT_NE(std::string(error.what()).find("128 numbers"), std::string::npos) << error.what();
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(mesh.coordinate("pp"), 1) << error.what();
    }
  });
}

// Ranks of pp without the first stage need no inputs.
TEST(ParallelizeEvaluate, OnlyTheFirstStageNeedsInputs) {
  run_group(BackendKind::local, 2, [](Group world) {
    OwnNet plain, net;
    ParallelModel model = parallelize(net, Mesh(world, {{"pp", 2}}));
    const OwnBatch batch(1, 4);
    at::NoGradGuard no_grad;
    const Tensors outputs = model.forward(world.is_root() ? Tensors{batch.x} : Tensors());
    expect_close_to(outputs.at(0), plain->forward(batch.x), 1e-11, "outputs");
  });
}

}  // namespace
}  // namespace lockstep::test
