// parallelize() gives, on every mesh, the losses, gradients and models of one process.
#include <lockstep/parallel/parallelize.h>

#include <lockstep/module/state_dict.h>
#include <lockstep/parallel/sharded/deferred.h>

#include "parallel/own_net.h"
#include "parallel/parallel_model.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {
namespace {

// A model whose only weight has two names.
struct TwiceNetImpl : torch::nn::Module {
  struct Again : torch::nn::Module {
    explicit Again(const at::Tensor& weight) { register_parameter("weight", weight); }
  };
  TwiceNetImpl()
      : first(register_module("first",
                              torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false)))) {
    register_module("again", std::make_shared<Again>(first->weight));
    fill_parameters(*this, 3);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return first(torch::tanh(first(x))); }
  torch::nn::Linear first;
};
TORCH_MODULE(TwiceNet);

TEST(Parallelize, ATiedWeightIsCutAndShardedByEachOfItsNames) {
  run_group(BackendKind::local, 4, [](Group world) {
    for (const char* name : {"first", "again"}) {
      TwiceNet net, plain;
      ParallelModel model =
          parallelize(net, Mesh(world, {{"fsdp", 2}, {"tp", 2}}),
                      {.tensor = {{name, Colwise()}}, .shard = {.units = {name}}});
      const auto parts = ParallelModelParts::of(model).trained.front().module->named_parameters();
      EXPECT_TRUE(parts.contains("first.weight") && parts.contains("again.weight"));
      ASSERT_EQ(model.parameters().size(), 1U);
      EXPECT_EQ(model.parameters().front().numel(), 8 * 8 / 4);
      const at::Tensor x = values({8, 8}, 1).to(at::kDouble), y = x.sum(1, true);
      const at::Tensor loss =
          model.step({own_rows(model.data(), x)}, {own_rows(model.data(), y)}, mean_square);
      const at::Tensor expected = mean_square({plain->forward(x)}, {y});
      expected.backward();
      EXPECT_NEAR(average_over(model.data(), loss), expected.item<double>(), 1e-11);
      const double norm = plain->first->weight.grad().norm().item<double>();
      EXPECT_NEAR(model.clip_grad_norm(1e9), norm, 1e-11 * norm);
    }
  });
}

TEST(Parallelize, ADeferredModelOnAnyMeshHasItsValues) {
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"dp", 1}},
                                            {{"pp", 1}},
                                            {{"pp", 2}},
                                            {{"pp", 2}, {"dp", 2}},
                                            {{"fsdp", 2}},
                                            {{"tp", 2}, {"dp", 1}}})
    run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
      // Large enough that the embeddings are deferred.
      models::GptOptions shape = composed_gpt();
      shape.vocabulary = 1000;
      auto plain = made_alike([&] { return models::Gpt(shape); }, at::kFloat);
      auto model = [&] {
        std::lock_guard lock(generator_mutex());
        torch::manual_seed(11);
        return deferred([&] { return models::Gpt(shape); }, {.smallest = 1024});
      }();
      ParallelModel gpt = parallelize(model, Mesh(world, axes));
      Group data = gpt.data();
      const TokenBatch batch(1, 4);
      const at::Tensor loss =
          gpt.step({own_rows(data, batch.ids)}, {own_rows(data, batch.targets)});
      const at::Tensor expected = plain->loss(batch.ids, batch.targets);
      expected.backward();
      EXPECT_NEAR(average_over(data, loss), expected.item<double>(), 1e-5)
          << text_of(Composition{.axes = axes});
      expect_norm_of(*plain, gpt, 1e-4);
    });
}

TEST(Parallelize, AUsersModelIsOneProcessOnEachAxis) {
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"dp", 1}},
                                            {{"dp", 3}},
                                            {{"fsdp", 3}},
                                            {{"tp", 2}},
                                            {{"pp", 3}},
                                            {{"pp", 2}, {"dp", 2}, {"tp", 2}},
                                            {{"tp", 2}, {"fsdp", 2}, {"pp", 2}}})
    run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
      OwnNet plain, net;
      ParallelModel model = parallelize(net, Mesh(world, axes), {.micro_batches = 2});
      const OwnBatch batch(1);
      Group data = model.data();
      const at::Tensor expected = mean_square({plain->forward(batch.x)}, {batch.y});
      expected.backward();
      const at::Tensor loss =
          model.step({own_rows(data, batch.x)}, {own_rows(data, batch.y)}, mean_square);
      EXPECT_NEAR(average_over(data, loss), expected.item<double>(), 1e-12);
      expect_norm_of(*plain, model);
    });
}

TEST(Parallelize, ThreeRanksLoseNoRow) {
  for (const char* axis : {"dp", "fsdp"})
    run_group(BackendKind::local, 3, [&](Group world) {
      OwnNet net;
      ParallelModel model = parallelize(net, Mesh(world, {{axis, 3}}));
      Group data = model.data();
      std::int64_t rows = 0;
      const OwnBatch batch(1, 10);
      (void)model.step({own_rows(data, batch.x)}, {own_rows(data, batch.y)},
                       [&](const Tensors& outputs, const Tensors& targets) {
                         rows += outputs[0].size(0);
                         return mean_square(outputs, targets);
                       });
      at::Tensor all = at::tensor({rows}, at::kLong);
      data.all_reduce(all).wait();
      EXPECT_EQ(all.item<std::int64_t>(), 10);
    });
}

TEST(Parallelize, AModelWithoutAPlanTrainsOnDpAndFsdp) {
  for (const std::vector<MeshAxis>& axes :
       {std::vector<MeshAxis>{{"dp", 2}}, {{"fsdp", 2}}, {{"dp", 2}, {"fsdp", 2}}})
    run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
      PlainNet plain, net;
      ParallelModel model = parallelize(net, Mesh(world, axes));
      Group data = model.data();
      const OwnBatch batch(1);
      const at::Tensor loss =
          model.step({own_rows(data, batch.x)}, {own_rows(data, batch.y)}, mean_square);
      const at::Tensor expected = mean_square({plain->forward(batch.x)}, {batch.y});
      expected.backward();
      EXPECT_NEAR(average_over(data, loss), expected.item<double>(), 1e-12);
      expect_norm_of(*plain, model);
    });
}

TEST(Parallelize, PlansOfAbsentAxesAreIgnored) {
  OwnNet plain, net;
  ParallelModel model = parallelize(net, Mesh(Group(), {{"dp", 1}}),
                                    {.tensor = {{"nothing", Colwise()}},
                                     .sequence_parallel = true,
                                     .context = ContextMethod::ulysses,
                                     .shard = {.units = {"nothing"}, .ignored = {"nothing"}},
                                     .pipeline = {"no schedule"}});
  const OwnBatch batch(1);
  mean_square({plain->forward(batch.x)}, {batch.y}).backward();
  (void)model.step({batch.x}, {batch.y}, mean_square);
  expect_norm_of(*plain, model);
}

// A pattern for tensors of one stage matches nothing in the other stages.
TEST(Parallelize, IgnoredTensorsAreNotAveraged) {
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"dp", 2}},
                                            {{"fsdp", 2}},
                                            {{"pp", 2}},
                                            {{"pp", 2}, {"dp", 2}},
                                            {{"pp", 2}, {"fsdp", 2}}})
    run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
      const std::string text = text_of(Composition{.axes = axes});
      OwnNet plain, own, net;
      const std::vector<std::string> ignored = {"in", "blocks.2.wide"};
      ParallelModel model = parallelize(
          net, Mesh(world, axes), {.shard = {.ignored = ignored}, .data = {.ignored = ignored}});
      const OwnBatch batch(1);
      Group data = model.data();
      const at::Tensor x = own_rows(data, batch.x), y = own_rows(data, batch.y);
      (void)model.step({x}, {y}, mean_square);
      mean_square({own->forward(x)}, {y}).backward();
      mean_square({plain->forward(batch.x)}, {batch.y}).backward();
      for (const Part& part : model.named_parameters())
        EXPECT_FALSE(part.name.starts_with("in.") || part.name.starts_with("blocks.2.wide."))
            << text << part.name;
      const auto expected = own->named_parameters();
      int found = 0;
      for (const char* name : {"in.weight", "blocks.2.wide.bias"}) {
        const at::Tensor gradient = net->named_parameters()[name].grad();
        if (!gradient.defined()) continue;  // of another rank's stage
        ++found;
        expect_close_to(gradient, expected[name].grad(), 1e-11, text + name);
      }
      EXPECT_EQ(found, model.mesh().size("pp") == 1 ? 2 : 1) << text;
      for (auto& parameter : plain->named_parameters())
        if (parameter.key().starts_with("in.") || parameter.key().starts_with("blocks.2.wide."))
          parameter.value().mutable_grad().reset();
      expect_norm_of(*plain, model);
    });
}

TEST(Parallelize, RowsAreCutAsAPipelineCutsThem) {
  for (const char* axis : {"dp", "pp"}) {
    const int ranks = axis == std::string("pp") ? 2 : 1;
    run_group(BackendKind::local, ranks, [&](Group world) {
      OwnNet net;
      ParallelModel model = parallelize(net, Mesh(world, {{axis, ranks}}), {.micro_batches = 4});
      std::vector<std::int64_t> rows;
      const PipelineLoss loss = [&](const Tensors& outputs, const Tensors& targets) {
        rows.push_back(outputs[0].size(0));
        EXPECT_EQ(targets[0].size(0), outputs[0].size(0));
        return mean_square(outputs, targets);
      };
      const OwnBatch batch(1, 10);
      (void)model.step({batch.x}, {batch.y}, loss);
      const bool has_loss = world.rank() == world.size() - 1;
      EXPECT_EQ(rows,
                has_loss ? (std::vector<std::int64_t>{2, 3, 2, 3}) : std::vector<std::int64_t>());
      rows.clear();
      const OwnBatch one(2, 1);
      const double found = model.evaluate({one.x}, {one.y}, loss).item<double>();
      EXPECT_EQ(rows, has_loss ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>());
      OwnNet plain;
      EXPECT_NEAR(found, mean_square({plain->forward(one.x)}, {one.y}).item<double>(), 1e-12);
    });
  }
}

TEST(Parallelize, EvaluateAndForwardAreThoseOfOneProcessOnEveryRank) {
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"dp", 1}},
                                            {{"tp", 2}},
                                            {{"cp", 2}},
                                            {{"fsdp", 2}},
                                            {{"pp", 2}},
                                            {{"pp", 2}, {"cp", 2}, {"tp", 2}}})
    for (const std::int64_t rows : {1, 3, 8})
      run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
        const std::string text = text_of(Composition{.axes = axes});
        const auto make = [] { return models::Gpt(composed_gpt()); };
        auto plain = made_alike(make, at::kDouble), model = made_alike(make, at::kDouble);
        ParallelModel gpt = parallelize(model, Mesh(world, axes), {.micro_batches = 4});
        const TokenBatch batch(1, rows);
        at::NoGradGuard no_grad;
        EXPECT_NEAR(gpt.evaluate({batch.ids}, {batch.targets}).item<double>(),
                    plain->loss(batch.ids, batch.targets).item<double>(), 1e-11)
            << text;
        const Tensors outputs = gpt.forward({batch.ids});
        ASSERT_EQ(outputs.size(), 1u) << text;
        EXPECT_FALSE(is_global(outputs[0])) << text;
        expect_close_to(outputs[0], plain->forward(batch.ids), 1e-10, text);
        for (const Part& part : gpt.named_parameters())
          EXPECT_FALSE(part.tensor.grad().defined()) << text << part.name;
      });
}

// An exception in the loss, which only one rank computes, ends the step on all ranks.
TEST(Parallelize, AnExceptionInAStageNamesRankAndAction) {
  run_group(BackendKind::local, 4, [](Group world) {
    OwnNet net;
    const Mesh mesh(world, {{"pp", 2}, {"dp", 2}});
    ParallelModel model = parallelize(net, mesh);
    const OwnBatch batch(1);
    const PipelineLoss failing = [](const Tensors&, const Tensors&) -> at::Tensor {
      throw std::runtime_error("no loss today");
    };
    try {
      (void)model.step({batch.x}, {batch.y}, failing);
      ADD_FAILURE() << "no error";
    } catch (const Aborted& error) {
      EXPECT_NE(std::string(error.what()).find("no loss today"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("1F0"), std::string::npos) << error.what();
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(mesh.coordinate("pp"), 1) << error.what();
    }
  });
}

TEST(ParallelModel, SaysWhatEachAxisDoes) {
  run_group(BackendKind::local, 8, [](Group world) {
    auto model = made_alike([] { return models::Gpt(composed_gpt()); }, at::kFloat);
    ParallelModel gpt = parallelize(model, Mesh(world, {{"tp", 2}, {"pp", 2}, {"fsdp", 2}}));
    const std::string plan = gpt.plan();
    for (const char* words :
         {"parallelize on tp=2, pp=2, fsdp=2 (8 ranks)",
          "stage 0 on rank 0 of pp: embedding..transformer.h.1", "tensor parallel on 2 ranks",
          "shards: on 2 ranks of fsdp, units transformer.h.*, transformer.wte"})
      EXPECT_NE(plan.find(words), std::string::npos) << words << " in " << plan;
    EXPECT_EQ(gpt.mesh().layout().describe(), "tp=2, pp=2, fsdp=2");
    EXPECT_EQ(gpt.data().size(), 2);
    EXPECT_EQ(gpt.group().size(), 8);
    // Ranks that differ on tp only draw equal random numbers.
    const Mesh& mesh = gpt.mesh();
    EXPECT_EQ(gpt.random_stream(), 2 * mesh.coordinate("fsdp") + mesh.coordinate("pp"));
  });
}

TEST(ParallelModel, OutlivesTheModelsOfTheProgram) {
  run_group(BackendKind::local, 2, [](Group world) {
    for (const char* axis : {"dp", "fsdp", "tp", "pp"}) {
      ParallelModel model = parallelize(OwnNet(), Mesh(world, {{axis, 2}}));
      const OwnBatch batch(1);
      (void)model.step({batch.x}, {batch.y}, mean_square);
      ParallelModel moved = std::move(model);
      EXPECT_GT(moved.clip_grad_norm(1e9), 0);
    }
  });
}

}  // namespace
}  // namespace lockstep::test
