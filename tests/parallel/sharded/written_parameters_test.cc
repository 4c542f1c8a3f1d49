// Operations of forward() that write a whole parameter. If the ranks have written different values,
// every rank gets a Mismatch that names the parameter, because each shard would keep its own rank's
// value.
#include "parallel/sharded/pair.h"

#include <lockstep/mesh/mesh.h>

#include <torch/nn/modules/embedding.h>

namespace lockstep {
namespace {

using namespace test;

struct ScaledTableImpl : torch::nn::Module {
  explicit ScaledTableImpl(bool trains = true) {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(12, 4).max_norm(0.1)));
    out = register_module("out", torch::nn::Linear(4, 1));
    fill_parameters(*this, 3);
    table->weight.requires_grad_(trains);
  }
  at::Tensor forward(const at::Tensor& ids) { return out(table(ids)).square().mean(); }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(ScaledTable);

at::Tensor ids_of(int rank) { return at::arange(2, at::kLong) + 3 * rank; }

void for_every_way(const std::function<void(Group, const ShardOptions&)>& body) {
  for (const ShardLevel level : all_levels)
    for (const ShardStorage storage : all_storages)
      for (const bool keeps : {false, true})
        run_as_threads(3, [&](Group group) {
          body(group, {.level = level,
                       .storage = storage,
                       .units = {"table", "out"},
                       .reshard_after_forward = !keeps});
        });
}

TEST(WrittenParameters, AnEmbeddingWithMaxNormIsRefusedOnEveryRankInTheFirstStep) {
  for (const bool trains : {true, false})
    for_every_way([&](Group group, const ShardOptions& options) {
      ScaledTable model(trains);
      ShardedModule sharded = fully_shard(model, group, options);
      const std::string text =
          message_of<Mismatch>([&] { model->forward(ids_of(group.rank())).backward(); });
      expect_words(text, {"fully_shard()", "table.weight", "unit table", "rank", "max_norm"});
      EXPECT_EQ(text.find('\n'), std::string::npos);
      group.barrier().wait();
    });
}

TEST(WrittenParameters, AWriteOfAnEvaluationIsRefusedInTheNextStep) {
  run_as_threads(2, [](Group group) {
    ScaledTable model;
    ShardedModule sharded = fully_shard(model, group, {.units = {"table", "out"}});
    {
      torch::NoGradGuard no_grad;
      model->forward(ids_of(group.rank()));
    }
    sharded.zero_grad();
    expect_words(message_of<Mismatch>([&] { model->forward(ids_of(0)).backward(); }),
                 {"table.weight", "rank 1"});
  });
}

// All ranks have the same batch, so the results equal those of one process.
TEST(WrittenParameters, TheSameWriteOnEveryRankIsNoTrouble) {
  for_every_way([](Group group, const ShardOptions& options) {
    ScaledTable model, plain;
    ShardedModule sharded = fully_shard(model, group, options);
    torch::optim::SGD sgd(sharded.parameters(), 0.5), of_plain(plain->parameters(), 0.5);
    for (int step = 0; step < 4; ++step) {
      sharded.zero_grad();
      of_plain.zero_grad();
      const at::Tensor loss = model->forward(ids_of(step % 3));
      const at::Tensor expected = plain->forward(ids_of(step % 3));
      EXPECT_TRUE(at::allclose(loss, expected)) << step;
      loss.backward();
      expected.backward();
      sgd.step();
      of_plain.step();
    }
    const auto found = sharded.state_dict();
    for (const auto& one : plain->named_parameters())
      EXPECT_TRUE(at::allclose(found.at(one.key()), one.value())) << one.key();
  });
}

TEST(WrittenParameters, OnOneRankTheyAreThoseOfOneProcess) {
  run_as_threads(1, [](Group group) {
    ScaledTable model, plain;
    ShardedModule sharded = fully_shard(model, group, {.units = {"table", "out"}});
    for (int step = 0; step < 3; ++step) {
      model->forward(ids_of(step)).backward();
      plain->forward(ids_of(step)).backward();
    }
    EXPECT_TRUE(at::allclose(sharded.state_dict().at("table.weight"), plain->table->weight));
  });
}

// On a mesh of shards and replicas, all ranks are compared.
TEST(WrittenParameters, ReplicasOfShardsAreCompared) {
  run_as_threads(4, [](Group group) {
    ScaledTable model;
    Mesh mesh(group, {{"replicate", 2}, {"shard", 2}});
    ShardedModule sharded = fully_shard(model, mesh, {.units = {"table", "out"}});
    expect_words(message_of<Mismatch>([&] { model->forward(ids_of(group.rank() / 2)).backward(); }),
                 {"table.weight", "rank 2"});
  });
}

}  // namespace
}  // namespace lockstep
