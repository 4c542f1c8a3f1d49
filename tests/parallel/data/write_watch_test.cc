// Operations of forward() that write to a parameter depending on the batch would make the ranks
// diverge. So all ranks get a Mismatch that names the operation, and DataParallel throws an error.
#include "base/format.h"
#include "parallel/sharded/support.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/threads/data_parallel.h>

#include <torch/nn/functional/embedding.h>
#include <torch/nn/modules/embedding.h>

namespace lockstep {
namespace {

using namespace test;

namespace functional = torch::nn::functional;

// Three ways to use the same table, whose rows are scaled down to max_norm when they are read.
struct TableImpl : torch::nn::Module {
  explicit TableImpl(std::string the_way = "Embedding", double norm = 0.1, bool trains = true)
      : way(std::move(the_way)), max_norm(norm) {
    if (way == "Embedding")
      table = register_module(
          "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(8, 4).max_norm(max_norm)));
    if (way == "EmbeddingBag")
      bag = register_module(
          "table", torch::nn::EmbeddingBag(
                       torch::nn::EmbeddingBagOptions(8, 4).max_norm(max_norm).mode(torch::kSum)));
    if (way == "functional") weight = register_parameter("weight", torch::zeros({8, 4}));
    out = register_module("out", torch::nn::Linear(4, 1));
    fill_parameters(*this, 3);
    if (!trains)
      for (const auto& one : named_parameters())
        if (one.value().size(0) == 8) at::Tensor(one.value()).requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor rows;
    if (way == "Embedding") rows = table(ids);
    if (way == "EmbeddingBag") rows = bag(ids.unsqueeze(1));
    if (way == "functional")
      rows =
          functional::embedding(ids, weight, functional::EmbeddingFuncOptions().max_norm(max_norm));
    return out(rows).square().mean();
  }
  std::string way;
  double max_norm;
  torch::nn::Embedding table{nullptr};
  torch::nn::EmbeddingBag bag{nullptr};
  at::Tensor weight;
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Table);

const char* const ways[] = {"Embedding", "EmbeddingBag", "functional"};

at::Tensor ids_of(int rank) { return at::arange(2, at::kLong) + 2 * rank; }

std::map<std::string, DistributedDataParallelOptions> variants() {
  return {{"as it is", {}},
          {"tiny buckets", {.bucket_bytes = 1, .first_bucket_bytes = 1}},
          {"static graph", {.static_graph = true}},
          {"finds unused", {.find_unused_parameters = true}}};
}

TEST(WriteWatch, AnEmbeddingWithMaxNormIsRefusedOnEveryRankInTheFirstStep) {
  for (const std::string way : ways)
    for (bool trains : {true, false})
      for (const auto& [variant, options] : variants())
        run_as_threads(3, [&, options = options](Group group) {
          Table model(way, 0.1, trains);
          DistributedDataParallel ddp(model, group, options);
          const std::string text =
              message_of<Mismatch>([&] { model->forward(ids_of(group.rank())).backward(); });
          expect_words(text, {"DistributedDataParallel", "weight", "rank 2", "max_norm"});
          EXPECT_EQ(text.find('\n'), std::string::npos);
          group.barrier().wait();
        });
}

// Writes in `step`, before or after zero_grad().
std::string text_of_write_in(int step, bool after_zero_grad, Group group, int steps) {
  Branches model;
  DistributedDataParallel ddp(model, group);
  torch::optim::SGD sgd(ddp.parameters(), 0.01);
  for (int now = 0; now < steps; ++now) {
    const auto write = [&] {
      torch::NoGradGuard no_grad;
      if (now == step) model->layers[1]->weight[group.rank()].mul_(0.5);
    };
    if (!after_zero_grad) write();
    ddp.zero_grad();
    if (after_zero_grad) write();
    const std::string text = message_of<Mismatch>([&] {
      model->forward(values({2, 3}, now), "abc").sum().backward();
    });
    if (!text.empty()) return formatted("step {}: {}", now, text);
    sgd.step();
  }
  return "";
}

TEST(WriteWatch, AWriteOfALaterForwardIsRefusedInThatStep) {
  run_as_threads(3, [](Group group) {
    for (int step : {2, 4, 5})
      expect_words(text_of_write_in(step, true, group, 8),
                   {formatted("step {}:", step), "b.weight", "rank"});
  });
}

TEST(WriteWatch, AWriteBeforeZeroGradIsRefusedWhenAllAreCompared) {
  run_as_threads(3, [](Group group) {
    expect_words(text_of_write_in(4, false, group, 16), {"step 7:", "b.weight"});
  });
}

TEST(WriteWatch, TheSameWriteOnEveryRankIsNoTrouble) {
  run_as_threads(3, [](Group group) {
    Branches model, plain;
    DistributedDataParallel ddp(model, group);
    torch::optim::SGD sgd(ddp.parameters(), 0.01), of_plain(plain->parameters(), 0.01);
    for (int step = 0; step < 6; ++step) {
      ddp.zero_grad();
      of_plain.zero_grad();
      for (Branches* one : {&model, &plain}) {
        torch::NoGradGuard no_grad;
        for (at::Tensor& parameter : (*one)->parameters()) parameter.clamp_(-0.1, 0.1);
      }
      model->forward(values({2, 3}, step), "abc").sum().backward();
      plain->forward(values({2, 3}, step), "abc").sum().backward();
      sgd.step();
      of_plain.step();
    }
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_TRUE(at::allclose(model->parameters()[i], plain->parameters()[i]));
  });
}

// Machines may round differently.
TEST(WriteWatch, ADifferenceOfRoundingIsNoTrouble) {
  run_as_threads(2, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 4; ++step) {
      ddp.zero_grad();
      {
        torch::NoGradGuard no_grad;
        model->layers[0]->weight.mul_(1 + 1e-6 * group.rank());
      }
      model->forward(values({2, 3}, step), "abc").sum().backward();
    }
  });
}

TEST(WriteWatch, RanksWithoutInputsAreNotCompared) {
  run_as_threads(2, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    torch::optim::SGD sgd(ddp.parameters(), 0.01);
    Join join({&ddp.joinable()});
    for (int step = 0; step < 2 + 3 * group.rank(); ++step) {
      ddp.zero_grad();
      model->forward(values({2, 3}, step), "abc").sum().backward();
      sgd.step();
    }
    join.finish([&] { sgd.step(); });
  });
}

TEST(WriteWatch, ModelsThatMayDifferMay) {
  run_as_threads(2, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group, {.hook = post_local_sgd({.start_step = 0})});
    torch::optim::SGD sgd(ddp.parameters(), 0.01);
    for (int step = 0; step < 5; ++step) {
      ddp.zero_grad();
      model->forward(values({2, 3}, step + 9 * group.rank()), "abc").sum().backward();
      sgd.step();
    }
  });
}

TEST(WriteWatch, DataParallelRefusesItToo) {
  for (const std::string way : ways)
    for (int devices : {1, 2}) {
      Table model(way);
      DataParallel<Table> parallel(model, cpu_devices(devices),
                                   {.make_replica = [&] { return Table(way).ptr(); }});
      const auto loss = [](Table& replica, const at::Tensor& ids) { return replica->forward(ids); };
      const at::Tensor ids = at::arange(4, at::kLong);
      const std::string text =
          message_of<DeviceFailed>([&] { (void)parallel.backward(loss, ids); });
      if (devices == 1) {
        EXPECT_EQ(text, "");
      } else {
        expect_words(text, {"device 0", "weight", "max_norm"});
      }
    }
}

}  // namespace
}  // namespace lockstep
