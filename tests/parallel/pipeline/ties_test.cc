// Weights that several stages share, on several ranks or on one rank.
#include <lockstep/parallel/pipeline/pipeline.h>

#include <lockstep/parallel/parallelize.h>

#include "parallel/pipeline/support.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adamw.h>

namespace lockstep {
namespace {

using namespace test;

class PipelineTies : public BackendTest {};

// A model whose embedding is also its last layer.
struct Tied {
  torch::nn::Embedding embedding;
  torch::nn::Sequential body;
  std::shared_ptr<torch::nn::Module> root = std::make_shared<torch::nn::Module>("tied");

  explicit Tied(int layers = 3, bool is_sparse = false)
      : embedding(torch::nn::EmbeddingOptions(11, block_width).sparse(is_sparse)),
        body(blocks(layers, 20)) {
    fill_parameters(*embedding, 8);
    root->register_module("wte", embedding);
    root->register_module("body", body);
  }
  std::vector<ModelPiece> pieces() {
    std::vector<ModelPiece> list{{"wte", {"wte"}, [wte = embedding](const Tensors& in) mutable {
                                    return Tensors{wte(in[0])};
                                  }}};
    for (std::size_t i = 0; i < body->size(); ++i) {
      const std::string name = "body." + std::to_string(i);
      list.push_back({name, {name}, [block = body->ptr<PipedBlockImpl>(i)](const Tensors& in) {
                        return Tensors{block->forward(in[0])};
                      }});
    }
    list.push_back({"head", {"wte"}, [wte = embedding](const Tensors& in) {
                      return Tensors{at::linear(in[0], wte->weight)};
                    }});
    return list;
  }
  at::Tensor forward(const at::Tensor& ids) {
    return at::linear(body->forward(embedding(ids)), embedding->weight);
  }
};

at::Tensor class_loss(const Tensors& outputs, const Tensors& targets) {
  return torch::nn::functional::cross_entropy(outputs.front(), targets.front());
}

// The ranks of its other stages send zeros for it, with which AdamW would let it decay.
TEST_P(PipelineTies, AFrozenWeightHasNoGradient) {
  run([&](Group group) {
    Tied tied;
    const std::vector<std::string> all{"body.0", "body.1", "body.2"};
    const std::vector<std::string> points(all.begin(), all.begin() + group.size() - 1);
    const auto schedule = plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = 2});
    Pipeline pipeline(split(*tied.root, tied.pieces(), points), schedule, group, class_loss);
    tied.embedding->weight.requires_grad_(false);
    torch::optim::AdamW adamw(pipeline.parameters(), torch::optim::AdamWOptions(0.1));
    const at::Tensor before = pipeline.state_dict().at("wte.weight").clone();
    for (int step = 0; step < 2; ++step) {
      const at::Tensor ids = (at::arange(10) * 7 + step).remainder(11);
      pipeline.zero_grad();
      (void)pipeline.step({ids}, {(ids * 3).remainder(11)});
      for (const Part& part : pipeline.named_parameters())
        EXPECT_EQ(part.tensor.grad().defined(), part.name != "wte.weight") << part.name;
      adamw.step();
    }
    EXPECT_TRUE(same_bits(pipeline.state_dict().at("wte.weight"), before));
  });
}

TEST_P(PipelineTies, ATiedWeightIsOneOnAllItsStages) {
  run([&](Group group) {
    Tied tied, plain;
    const std::vector<std::string> all{"body.0", "body.1", "body.2"};
    const std::vector<std::string> points(all.begin(), all.begin() + group.size() - 1);
    const auto schedule =
        plan::make_schedule("zb-h1", {.stages = group.size(), .micro_batches = 4});
    Pipeline pipeline(split(*tied.root, tied.pieces(), points), schedule, group, class_loss);
    torch::optim::SGD sgd(pipeline.parameters(), 0.1), plain_sgd(plain.root->parameters(), 0.1);
    const StageForward forward = [&](const Tensors& x) { return Tensors{plain.forward(x[0])}; };
    for (int step = 0; step < 3; ++step) {
      const at::Tensor ids = (at::arange(10) * 7 + step).remainder(11);
      const PipedBatch batch{{ids}, {(ids * 3).remainder(11)}};
      pipeline.zero_grad();
      plain_sgd.zero_grad();
      const at::Tensor loss = pipeline.step(batch.inputs, batch.targets);
      const at::Tensor expected = one_process_step(forward, class_loss, batch, 4);
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
      const Gradients gradients = gradients_of(*plain.root);
      for (const Part& part : pipeline.named_parameters())
        EXPECT_TRUE(at::allclose(dispatch::values_of(part.tensor.grad()), gradients.at(part.name),
                                 1e-5, 1e-7))
            << part.name;
      sgd.step();
      plain_sgd.step();
    }
    bool has = false;
    for (const Part& part : pipeline.named_parameters()) has |= part.name == "wte.weight";
    EXPECT_EQ(has, group.rank() == 0);
    EXPECT_TRUE(at::allclose(pipeline.state_dict().at("wte.weight"), plain.embedding->weight));
    const at::Tensor ids = at::arange(8);
    const Tensors outputs = pipeline.forward({ids});
    if (!outputs.empty()) {
      EXPECT_TRUE(at::allclose(outputs.front(), plain.forward(ids), 1e-5, 1e-6));
    }
  });
}

// Data parallelism would take another version for a write of forward().
TEST_P(PipelineTies, TheExchangeLeavesVersionsAlone) {
  run([&](Group group) {
    Tied tied;
    const std::vector<std::string> all{"body.0", "body.1", "body.2"};
    const std::vector<std::string> points(all.begin(), all.begin() + group.size() - 1);
    const auto schedule = plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = 2});
    Pipeline pipeline(split(*tied.root, tied.pieces(), points), schedule, group, class_loss);
    const auto version = tied.embedding->weight._version();
    const at::Tensor ids = (at::arange(10) * 7).remainder(11);
    (void)pipeline.step({ids}, {(ids * 3).remainder(11)});
    EXPECT_EQ(tied.embedding->weight._version(), version);
  });
}

// The memory of a weight may be transposed.
TEST(PipelineTiesOfTwoRanks, MayLieTransposed) {
  run_group(BackendKind::shm, 2, [&](Group group) {
    auto first = std::make_shared<torch::nn::Module>("first");
    const at::Tensor weight =
        first->register_parameter("weight", values({block_width, block_width + 1}, 1).t());
    const std::vector<ModelPiece> pieces{
        {"in", {"weight"}, [=](const Tensors& in) { return Tensors{in[0].matmul(weight.t())}; }},
        {"out", {"weight"}, [=](const Tensors& in) { return Tensors{in[0].matmul(weight)}; }}};
    Pipeline pipeline(split(*first, pieces, {"out"}),
                      plan::make_schedule("1f1b", {.stages = 2, .micro_batches = 2}), group,
                      squared_error);
    for (int step = 0; step < 2; ++step) {
      const PipedBatch batch = piped_batch(4, step);
      pipeline.zero_grad();
      const at::Tensor loss = pipeline.step(batch.inputs, batch.targets);
      const at::Tensor x = batch.inputs.front();
      EXPECT_NEAR(
          loss.item<double>(),
          squared_error({x.matmul(weight.t()).matmul(weight)}, batch.targets).item<double>(), 1e-5);
      at::NoGradGuard no_grad;
      for (const at::Tensor& own : pipeline.parameters())
        if (own.grad().defined()) own.sub_(own.grad() * 0.01);
    }
  });
}

// The other stages' ranks keep gradients of the weight, which only its owner's optimizer has.
TEST_P(PipelineTies, ZeroGradOfTheOptimizerReachesWhatNoSyncHasKept) {
  run([&](Group group) {
    Tied tied, plain;
    const std::vector<std::string> all{"body.0", "body.1", "body.2"};
    const std::vector<std::string> points(all.begin(), all.begin() + group.size() - 1);
    Pipeline pipeline(split(*tied.root, tied.pieces(), points),
                      plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = 4}),
                      group, class_loss);
    torch::optim::SGD sgd(pipeline.parameters(), 0.1);
    const StageForward forward = [&](const Tensors& x) { return Tensors{plain.forward(x[0])}; };
    const auto batch_of = [](int seed) -> PipedBatch {
      const at::Tensor ids = (at::arange(10) * 7 + seed).remainder(11);
      return {{ids}, {(ids * 3).remainder(11)}};
    };
    for (bool set_to_none : {true, false})
      for (bool is_cleared : {true, false}) {
        pipeline.zero_grad();
        plain.root->zero_grad();
        for (int seed : {1, 2}) {
          const auto scope = pipeline.no_sync();
          (void)pipeline.step(batch_of(seed).inputs, batch_of(seed).targets);
          if (!is_cleared) (void)one_process_step(forward, class_loss, batch_of(seed), 4);
        }
        if (is_cleared) sgd.zero_grad(set_to_none);
        for (const at::Tensor& parameter : pipeline.parameters())  // no rows: this clears nothing
          if (!is_cleared && parameter.grad().defined()) parameter.grad().narrow(0, 0, 0).zero_();
        (void)pipeline.step(batch_of(3).inputs, batch_of(3).targets);
        (void)one_process_step(forward, class_loss, batch_of(3), 4);
        const Gradients gradients = gradients_of(*plain.root);
        for (const Part& part : pipeline.named_parameters())
          EXPECT_TRUE(at::allclose(dispatch::values_of(part.tensor.grad()), gradients.at(part.name),
                                   1e-5, 1e-6))
              << part.name << set_to_none << is_cleared;
      }
  });
}

// The same if each of the two ranks of a stage has a part.
TEST(PipelineTiesOfTwoRanks, ZeroGradOfTheOptimizerReachesWhatNoSyncHasKeptInShards) {
  for (const ShardLevel level : {ShardLevel::optimizer, ShardLevel::full})
    run_group(BackendKind::shm, 4, [&](Group world) {
      Tied tied(/*layers=*/4), plain(/*layers=*/4);
      ParallelModel pipeline =
          parallelize(tied.root, Mesh(world, {{"pp", 2}, {"fsdp", 2}}),
                      {.pieces = tied.pieces(), .loss = class_loss},
                      {.shard = {.level = level}, .pipeline = {"1f1b"}, .micro_batches = 2});
      torch::optim::SGD sgd(pipeline.parameters(), 0.1);
      const StageForward forward = [&](const Tensors& x) { return Tensors{plain.forward(x[0])}; };
      const auto batch_of = [](int seed) -> PipedBatch {
        const at::Tensor ids = (at::arange(10) * 7 + seed).remainder(11);
        return {{ids}, {(ids * 3).remainder(11)}};
      };
      for (bool has_averages : {false, true})
        for (bool set_to_none : {true, false})
          for (bool is_cleared : {true, false}) {
            pipeline.zero_grad();
            plain.root->zero_grad();
            const auto step = [&](int seed, bool counts) {
              (void)pipeline.step(batch_of(seed).inputs, batch_of(seed).targets);
              if (counts) (void)one_process_step(forward, class_loss, batch_of(seed), 2);
            };
            if (has_averages) step(4, !is_cleared);
            for (int seed : {1, 2}) {
              const auto scope = pipeline.no_sync();
              step(seed, !is_cleared);
            }
            if (is_cleared) sgd.zero_grad(set_to_none);
            step(3, true);
            const Gradients gradients = gradients_of(*plain.root);
            for (const Part& part : pipeline.named_parameters()) {
              const layout::Range range = part.slice.range;
              EXPECT_TRUE(at::allclose(
                  dispatch::values_of(part.tensor.grad()),
                  gradients.at(part.name).reshape({-1}).narrow(0, range.begin, range.length()),
                  1e-5, 1e-6))
                  << part.name << has_averages << set_to_none << is_cleared;
            }
          }
    });
}

// An exception on one rank after its last action ends the step on all ranks.
TEST_P(PipelineTies, AGradientThatCannotBeTiedIsToldToAllRanks) {
  run([&](Group group) {
    if (group.size() == 1) return;
    Tied tied(/*layers=*/3, /*is_sparse=*/true);
    const std::vector<std::string> all{"body.0", "body.1", "body.2"};
    const std::vector<std::string> points(all.begin(), all.begin() + group.size() - 1);
    Pipeline pipeline(split(*tied.root, tied.pieces(), points),
                      plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = 4}),
                      group, class_loss, {.timeout = std::chrono::seconds(20)});
    const at::Tensor ids = at::arange(10);
    std::string text = "no error";
    try {
      (void)pipeline.step({ids}, {ids});
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(group.rank(), 0);
      text = error.what();
    } catch (const Aborted& error) {
      EXPECT_NE(group.rank(), 0);
      text = error.what();
      expect_contains(text,
                      "rank 0 ended the group: the exchange of tied gradients of the "
                      "pipeline failed: ");
    }
    expect_contains(text,
                    "pipeline: parameter wte.weight: expected a dense gradient, since it is tied "
                    "over ranks, found a sparse one");
  });
}

// The first and the last stage share a weight and are on the same rank, which trains the weight
// once.
void expect_tied_on_one_rank(const Mesh& mesh, const ShardOptions& shard = {}) {
  Tied tied(/*layers=*/4);
  ParallelModel pipeline =
      parallelize(tied.root, mesh, {.pieces = tied.pieces(), .loss = class_loss},
                  {.shard = shard, .pipeline = {"zbv"}, .micro_batches = 4});
  const int number = pipeline.data().rank();
  torch::optim::SGD sgd(pipeline.parameters(), 0.1);
  std::vector<Tied> plain;
  for (int replica = 0; replica < 2; ++replica) plain.emplace_back(/*layers=*/4);
  for (int step = 0; step < 2; ++step) {
    const auto batch_of = [&](int replica) -> PipedBatch {
      const at::Tensor ids = (at::arange(8) * 7 + step + 3 * replica).remainder(11);
      return {{ids}, {(ids * 3).remainder(11)}};
    };
    std::vector<Gradients> of_replicas;
    for (int replica = 0; replica < 2; ++replica) {
      Tied& one = plain[static_cast<std::size_t>(replica)];
      one.root->zero_grad();
      (void)one_process_step([&](const Tensors& x) { return Tensors{one.forward(x[0])}; },
                             class_loss, batch_of(replica), 4);
      of_replicas.push_back(gradients_of(*one.root));
    }
    const PipedBatch batch = batch_of(number);
    pipeline.zero_grad();
    (void)pipeline.step(batch.inputs, batch.targets);
    sgd.step();
    at::NoGradGuard no_grad;
    for (Tied& one : plain)
      for (const NamedParameter& parameter : unique_parameters(*one.root))
        parameter.tensor.sub_(
            (of_replicas[0].at(parameter.name) + of_replicas[1].at(parameter.name)) / 2, 0.1);
    for (const auto& [named, tensor] : pipeline.state_dict()) {
      const auto expected = plain.front().root->named_parameters()[named];
      EXPECT_TRUE(at::allclose(tensor, expected, 1e-5, 1e-6)) << named << " after " << step;
    }
  }
}

TEST(PipelineTiesOfOneRank, AreAveragedOnceOverReplicas) {
  run_group(BackendKind::shm, 4, [](Group world) {
    expect_tied_on_one_rank(Mesh(world, {{"pp", 2}, {"dp", 2}}));
  });
}

TEST(PipelineTiesOfOneRank, MayBeDivided) {
  for (const ShardLevel level : {ShardLevel::optimizer, ShardLevel::full})
    run_group(BackendKind::shm, 4, [&](Group world) {
      expect_tied_on_one_rank(Mesh(world, {{"pp", 2}, {"fsdp", 2}}), {.level = level});
    });
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineTies,
                         testing::Combine(testing::Values(BackendKind::local, BackendKind::shm),
                                          testing::Values(1, 2, 4)),
                         backend_test_name);

}  // namespace
}  // namespace lockstep
