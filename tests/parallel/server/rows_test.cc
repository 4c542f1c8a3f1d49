// Rows of an embedding that are pushed and pulled individually: the same values as the whole table,
// and fewer bytes.
#include "parallel/server/support.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>

namespace lockstep {
namespace {

using namespace test;

constexpr std::int64_t words = 101, width = 6;
constexpr int row_steps = 5;

struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool sparse)
      : embedding(register_module(
            "embedding",
            torch::nn::Embedding(torch::nn::EmbeddingOptions(words, width).sparse(sparse)))),
        head(register_module("head", torch::nn::Linear(width, 1))) {
    fill_parameters(*this, 4);
  }
  at::Tensor forward(const at::Tensor& ids) { return head(embedding(ids).tanh()).square().mean(); }
  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};
TORCH_MODULE(Words);

// The words of a worker's batch: some repeat, and some are common to all workers.
at::Tensor ids_of(int step, int worker) {
  return (at::arange(7, at::kLong) * (step + 3) + worker * 31).remainder(words);
}

std::vector<at::Tensor> dense(int workers, const ps::MakeOptimizer& make) {
  std::vector<at::Tensor> state;
  run_as_threads(workers, [&](Group group) {
    Words model(false);
    DistributedDataParallel ddp(model, group);
    auto optimizer = make(ddp.named_parameters());
    for (int step = 0; step < row_steps; ++step) {
      ddp.zero_grad();
      model->forward(ids_of(step, group.rank())).backward();
      optimizer->step();
    }
    if (group.is_root()) state = state_of(*model);
  });
  return state;
}

void train_rows(ps::Worker& worker, Words& model, int number) {
  for (int step = 0; step < row_steps; ++step) {
    at::Tensor ids = ids_of(step, number);
    worker.pull_rows("embedding.weight", ids);
    worker.zero_grad();
    model->forward(ids).backward();
    worker.step();
  }
}

class ServersOfRows : public testing::TestWithParam<bool> {};

TEST_P(ServersOfRows, GiveWhatWholeEmbeddingsGive) {
  const bool sparse = GetParam();
  for (int servers : {1, 3}) {
    for (bool with_adam : {false, true}) {
      auto make =
          with_adam ? made_with<optim::AdamW>(torch::optim::AdamWOptions(0.02)) : plain_sgd(0.1);
      auto expected = dense(3, make);
      Servers place(servers, 3, "shm", {.optimizer = make});
      place.run([&](int number) {
        Words model(sparse);
        if (number > 0) fill_parameters(*model, 50);
        ps::Worker worker(model, place.meeting(), number, {.by_rows = {"embedding.*"}});
        auto before = worker.traffic();
        train_rows(worker, model, number);
        auto after = worker.traffic();
        // 7 ids per step, never all 101 rows.
        EXPECT_LE(after.pulled - before.pulled, row_steps * (7 * (width * 4 + 8) + 128 * servers));
        EXPECT_LE(after.pushed - before.pushed, row_steps * (7 * (width * 4 + 8) + 128 * servers));
        worker.pull_all_rows();
        expect_same_state(*model, expected, sparse ? "sparse" : "dense");
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gradients, ServersOfRows, testing::Bool(),
                         [](const auto& info) { return info.param ? "Sparse" : "Dense"; });

TEST(ServersOfRows, RowsThatAreForgottenAreNamed) {
  Servers place(2, 1, "shm", {.optimizer = plain_sgd(0.1)});
  place.run([&](int number) {
    Words model(false);
    ps::Worker worker(model, place.meeting(), number, {.by_rows = {"embedding.weight"}});
    auto refused = [&](const std::function<void()>& action, const std::string& part) {
      expect_contains(message_of<InvalidArgument>(action), part);
    };
    model->forward(at::tensor({5, 7}, at::kLong)).backward();
    refused([&] { worker.push(); }, "row 5 of embedding.weight has a gradient");
    worker.pull_rows("embedding.weight", at::tensor({5, 7}, at::kLong));
    worker.push();
    refused([&] { worker.push(); }, "push() was called twice without pull()");
    refused([&] { worker.pull_rows("embedding.weight", at::tensor({5}, at::kLong)); },
            "after push(): call pull() first");
    worker.pull();
    refused([&] { worker.push(); }, "row 5 of embedding.weight");  // gradients still exist
    worker.zero_grad();
    refused([&] { worker.pull_rows("head.weight", at::tensor({0}, at::kLong)); },
            "'head.weight' is not a parameter");
    refused([&] { worker.pull_rows("embedding.weight", at::tensor({words}, at::kLong)); },
            "expected rows from 0 to 100, found 101");
    refused(
        [&] {
          worker.pull_rows("embedding.weight", at::tensor({-1, 3}, at::kLong));
        },
        "found -1");
    refused([&] { worker.pull_rows("embedding.weight", at::ones({2})); }, "must be integers");
  });
}

TEST(ServersOfRows, ASparseGradientNeedsRows) {
  Servers place(1, 1, "shm", {.optimizer = plain_sgd(0.1)});
  place.run([&](int number) {
    Words model(true);
    ps::Worker worker(model, place.meeting(), number);
    model->forward(at::tensor({1}, at::kLong)).backward();
    expect_contains(message_of<InvalidArgument>([&] { worker.push(); }),
                    "the gradient of embedding.weight is sparse: name it in");
    expect_contains(message_of<InvalidArgument>(
                        [&] { ps::Worker other(model, place.meeting(), 0, {.by_rows = {"emb"}}); }),
                    "emb");
  });
}

TEST(ServerErrors, ABufferThatRequiresAGradientIsNamed) {
  Servers place(1, 1, "shm", {.optimizer = plain_sgd(0.1)});
  place.run([&](int number) {
    torch::nn::Linear model(3, 2);
    at::Tensor scale = model->register_buffer("scale", at::ones({2}).requires_grad_());
    auto refused = [&] { ps::Worker worker(model, place.meeting(), number); };
    expect_contains(message_of<InvalidArgument>(refused),
                    "parameter server: buffer scale requires a gradient");
    scale.set_requires_grad(false);
    ps::Worker worker(model, place.meeting(), number);
    model->register_buffer("late", at::ones({2}));  // local to each worker, as other buffers
    model->forward(values({1, 3}, 1)).sum().backward();
    worker.push();
    worker.pull();
  });
}

// Its gradient would never be pushed.
TEST(ServerErrors, WhatIsUnfrozenLaterIsNamed) {
  Servers place(1, 1, "shm", {.optimizer = plain_sgd(0.1)});
  place.run([&](int number) {
    torch::nn::Linear model(3, 2);
    model->bias.set_requires_grad(false);
    ps::Worker worker(model, place.meeting(), number);
    model->forward(values({1, 3}, 1)).sum().backward();
    model->bias.set_requires_grad(true);
    expect_contains(message_of<InvalidArgument>([&] { worker.push(); }),
                    "bias requires a gradient now");
  });
}

}  // namespace
}  // namespace lockstep
