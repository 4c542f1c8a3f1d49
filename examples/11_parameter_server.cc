// A parameter server: the first rank keeps and updates the parameters; the other ranks are workers
// that push gradients and pull values. Shows that a worker's loop has no optimizer, that only the
// embedding rows in a batch are sent, and how many steps apart workers may be.
//
//   lockstep run -n 4 11_parameter_server [STALENESS]      absent: synchronous steps
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

namespace ls = lockstep;

static constexpr std::int64_t words = 5000, width = 8;

// Classifies a bag of words into two classes.
struct BagImpl : torch::nn::Module {
  BagImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(words, width))),
        head(register_module("head", torch::nn::Linear(width, 1))) {}
  torch::Tensor forward(const torch::Tensor& ids) { return head(embedding(ids).mean(1)); }
  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};
TORCH_MODULE(Bag);

static torch::Tensor loss_of(Bag& model, const torch::Tensor& ids) {
  torch::Tensor is_low = ids.lt(words / 2).to(torch::kFloat).mean(1, true).gt(0.5);
  return torch::binary_cross_entropy_with_logits(model->forward(ids), is_low.to(torch::kFloat));
}

static void serve(const ls::ps::Role& place, int staleness) {
  bool together = staleness < 0;
  ls::ps::Server server(place.meeting, place.number,
                        {.optimizer =
                             [](const std::vector<ls::Part>& parts) {
                               return std::make_unique<ls::optim::AdamW>(
                                   ls::ps::tensors_of(parts), torch::optim::AdamWOptions(0.02));
                             },
                         .consistency = together ? ls::ps::Consistency::synchronous
                                                 : ls::ps::Consistency::stale_synchronous,
                         .staleness = together ? 0 : staleness});
  auto report = server.run();  // returns when the last worker has left
  std::printf("server: %lld updates for %d workers\n", static_cast<long long>(report.updates),
              report.joined);
}

static double work(const ls::ps::Role& place) {
  torch::manual_seed(1);
  Bag model;
  ls::ps::Worker worker(model, place.meeting, place.number, {.by_rows = {"embedding.weight"}});
  torch::manual_seed(100 + worker.number());
  for (int step = 0; step < 150; ++step) {
    torch::Tensor ids = torch::randint(words, {32, 9});
    worker.pull_rows("embedding.weight", ids);
    worker.zero_grad();
    loss_of(model, ids).backward();
    worker.step();  // pushes the gradients, and pulls the updated values
  }
  auto [pushed, pulled] = worker.traffic();
  worker.pull_all_rows();
  torch::NoGradGuard no_grad;
  double loss = loss_of(model, torch::randint(words, {1000, 9})).item<double>();
  std::printf("worker %d: loss %.3f, %lld KB pushed and %lld KB pulled a step of %lld KB\n",
              worker.number(), loss, static_cast<long long>(pushed / 150 / 1000),
              static_cast<long long>(pulled / 150 / 1000),
              static_cast<long long>(words * width * 4 / 1000));
  return loss;
}

int main(int argc, char** argv) try {
  auto place = ls::ps::role_of_rank(1);  // one server; the other ranks are workers
  if (!place.is_server) return work(place) < 0.55 ? 0 : 1;
  serve(place, argc > 1 ? std::atoi(argv[1]) : -1);
  return 0;
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
