// The tail of a step: from gradients on every rank to updated parameters on every rank. The
// counterpart of bench/peers/tail.py; the answer to a number of tails is their seconds.
//
//   sharded      one pass that sums, updates and publishes (ShardOptions::reduce_in_step); the
//                answer also has the bytes that AdamW has moved, by its counter
//   replicated   all_reduce of one flat gradient, then AdamW over everything on every rank
#include "serve.h"

#include "sys/program.h"

#include <lockstep/base/deadline.h>
#include <lockstep/comm/init.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <array>
#include <iostream>
#include <memory>
#include <string_view>

namespace lockstep::bench {
namespace {

constexpr int uncounted_tails = 2;
constexpr double tail_learning_rate = 1e-4;
constexpr std::array<std::string_view, 2> kinds{"sharded", "replicated"};

struct TailSizes {
  int tensors = 16;
  std::int64_t elements = 1 << 20;
};

class Tail {
 public:
  virtual ~Tail() = default;
  // Returns the seconds of one tail on this rank. The time starts when all ranks have gradients.
  virtual double seconds() = 0;
  [[nodiscard]] virtual const torch::optim::Optimizer& optimizer() const = 0;
  [[nodiscard]] virtual std::int64_t bytes_moved() const = 0;
};

// A model whose gradients cost almost nothing.
class Flat : public torch::nn::Module {
 public:
  explicit Flat(const TailSizes& sizes) {
    for (int i = 0; i < sizes.tensors; ++i)
      register_parameter("p" + std::to_string(i), torch::randn({sizes.elements}));
  }

  at::Tensor loss() {
    at::Tensor sum = torch::zeros({});
    for (const at::Tensor& parameter : parameters()) sum = sum + parameter.sum();
    return sum * 1e-3;
  }
};

class ShardedTail : public Tail {
 public:
  ShardedTail(const TailSizes& sizes, Group world)
      : world_(std::move(world)),
        model_(std::make_shared<Flat>(sizes)),
        sharded_(fully_shard(model_, world_,
                             {.storage = ShardStorage::node_shared, .reduce_in_step = true})),
        adamw_(sharded_.parameters(), torch::optim::AdamWOptions(tail_learning_rate)) {}

  // The time ends when all ranks may use the parameters that the others have updated.
  double seconds() override {
    model_->loss().backward();
    world_.barrier().wait();
    auto start = Clock::now();
    world_.barrier().wait();
    adamw_.step();
    world_.barrier().wait();
    auto end = Clock::now();
    moved_ = adamw_.bytes_moved();
    sharded_.zero_grad();
    return std::chrono::duration<double>(end - start).count();
  }
  [[nodiscard]] const torch::optim::Optimizer& optimizer() const override { return adamw_; }
  [[nodiscard]] std::int64_t bytes_moved() const override { return moved_; }

 private:
  Group world_;
  std::shared_ptr<Flat> model_;
  ShardedModule sharded_;
  optim::AdamW adamw_;
  std::int64_t moved_ = 0;
};

class ReplicatedTail : public Tail {
 public:
  ReplicatedTail(const TailSizes& sizes, Group world)
      : world_(std::move(world)),
        flat_(world_.empty_shared({sizes.tensors * sizes.elements},
                                  at::TensorOptions().dtype(at::kFloat))),
        adamw_(parameters_of(sizes, flat_), torch::optim::AdamWOptions(tail_learning_rate)) {}

  double seconds() override {
    flat_.fill_(1e-3);
    world_.barrier().wait();
    auto start = Clock::now();
    world_.all_reduce(flat_).wait();
    adamw_.step();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  [[nodiscard]] const torch::optim::Optimizer& optimizer() const override { return adamw_; }
  [[nodiscard]] std::int64_t bytes_moved() const override { return adamw_.bytes_moved(); }

 private:
  // The gradients are views of one flat tensor, as in a bucket.
  static std::vector<at::Tensor> parameters_of(const TailSizes& sizes, const at::Tensor& flat) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < sizes.tensors; ++i) {
      parameters.push_back(torch::randn({sizes.elements}).requires_grad_());
      parameters.back().mutable_grad() = flat.narrow(0, i * sizes.elements, sizes.elements);
    }
    return parameters;
  }

  Group world_;
  at::Tensor flat_;
  optim::AdamW adamw_;
};

std::unique_ptr<Tail> make_tail(const std::string& kind, const TailSizes& sizes,
                                const Group& world) {
  if (kind == "sharded") return std::make_unique<ShardedTail>(sizes, world);
  return std::make_unique<ReplicatedTail>(sizes, world);
}

}  // namespace

int serve_tails(const Words& words) {
  TailSizes sizes;
  std::string kind = "sharded";
  int threads = 1;
  CommandOptions options("lockstep-bench-rank tail", "", "");
  options.add({"kind", "WORD", ""}, word_into(kind, kinds));
  options.add({"tensors", "N", ""}, number_into(sizes.tensors, 1, 100'000));
  options.add({"elements", "N", ""}, number_into(sizes.elements, 1, 1 << 30));
  options.add({"threads", "N", ""}, number_into(threads, 1, 1024));
  if (auto code = sys::answer(options.read(words), options)) return *code;
  Group world = init();
  at::set_num_threads(threads);
  auto tail = make_tail(kind, sizes, world);
  for (int i = 0; i < uncounted_tails; ++i) (void)tail->seconds();
  bool fused = dynamic_cast<const optim::AdamW*>(&tail->optimizer()) != nullptr;
  serve(std::cin, std::cout, {{"ready", true}, {"fused", fused}}, [&](const std::string& line) {
    auto found = seconds_of_steps(line, [&] { return tail->seconds(); });
    found["losses"] = nlohmann::json::array();
    found["bytes"] = tail->bytes_moved();
    return found;
  });
  return 0;
}

}  // namespace lockstep::bench
