// A training step of a model in pipeline stages: the counterpart of bench/peers/pipeline.py. The
// answer to a number of steps is their seconds and the loss of the last step, plus two times of the
// last step:
//
//   measured   seconds from the first to the last action of a rank, on the slowest rank
//   promised   the same time by the simulator, from the measured times of the actions
#include "serve.h"

#include "matmul/matmul.h"
#include "sys/program.h"

#include <lockstep/comm/init.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/plan/simulation.h>

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <string_view>

namespace lockstep::bench {
namespace {

constexpr std::array<std::string_view, 4> schedules{"gpipe", "1f1b", "zb-h1", "zbv"};
constexpr double learning_rate = 1e-2;

struct PipelineSizes {
  std::string schedule = "1f1b";
  int width = 1024, depth = 8;  // layers of width x width
  int rows = 128;               // rows per micro-batch
  int micro_batches = 8;
};

class PipelineWork {
 public:
  PipelineWork(const PipelineSizes& sizes, Group world) : world_(std::move(world)) {
    torch::manual_seed(1);
    torch::nn::Sequential model;
    for (int i = 0; i < sizes.depth; ++i) {
      model->push_back(torch::nn::Linear(sizes.width, sizes.width));
      model->push_back(torch::nn::ReLU());
    }
    schedule_ = plan::make_schedule(sizes.schedule,
                                    {.stages = world_.size() * (sizes.schedule == "zbv" ? 2 : 1),
                                     .micro_batches = sizes.micro_batches});
    std::vector<std::string> points;
    for (int stage = 1; stage < schedule_.stages; ++stage)
      points.push_back(std::to_string(2 * (sizes.depth * stage / schedule_.stages)));
    pipeline_ = Pipeline(split(model, points), schedule_, world_,
                         [](const Tensors& outputs, const Tensors& targets) {
                           return torch::nn::functional::mse_loss(outputs[0], targets[0]);
                         });
    sgd_ = std::make_unique<torch::optim::SGD>(pipeline_.parameters(), learning_rate);
    torch::manual_seed(1234);
    const std::int64_t rows = std::int64_t{sizes.rows} * sizes.micro_batches;
    input_ = torch::randn({rows, sizes.width});
    target_ = torch::randn({rows, sizes.width});
  }

  double seconds() {
    world_.barrier().wait();
    const auto start = Clock::now();
    pipeline_.zero_grad();
    loss_ = pipeline_.step({input_}, {target_}).item<double>();
    sgd_->step();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  [[nodiscard]] double loss() const { return loss_; }
  [[nodiscard]] double measured() {
    at::Tensor longest = at::full({1}, pipeline_.measured().seconds, at::kDouble);
    world_.all_reduce(longest, Op::max).wait();
    return longest.item<double>();
  }
  [[nodiscard]] double promised() {
    const Pipeline::Measured measured = pipeline_.measured();
    at::Tensor all = at::zeros({schedule_.stages, 4}, at::kDouble);
    for (std::size_t i = 0; i < measured.stages.size(); ++i) {
      const auto& [forward, backward, input, weight] = measured.stages[i];
      all[pipeline_.stages()[i]].copy_(at::tensor({forward, backward, input, weight}, at::kDouble));
    }
    world_.all_reduce(all).wait();
    plan::PipelineTimes times{.stages = {}};
    const double* row = all.const_data_ptr<double>();
    for (int stage = 0; stage < schedule_.stages; ++stage, row += 4)
      times.stages.push_back({row[0], row[1], row[2], row[3]});
    const plan::Simulation simulation = plan::simulate(schedule_, times);
    return simulation.longest().end - simulation.longest().begin;
  }

 private:
  Group world_;
  plan::Schedule schedule_;
  Pipeline pipeline_;
  std::unique_ptr<torch::optim::SGD> sgd_;
  at::Tensor input_, target_;
  double loss_ = 0;
};

}  // namespace

int serve_pipelines(const Words& words) {
  PipelineSizes sizes;
  int threads = 1;
  CommandOptions options("lockstep-bench-rank pipeline", "", "");
  options.add({"schedule", "WORD", ""}, word_into(sizes.schedule, schedules));
  options.add({"width", "N", ""}, number_into(sizes.width, 1, 1 << 16));
  options.add({"depth", "N", ""}, number_into(sizes.depth, 1, 1024));
  options.add({"rows", "N", ""}, number_into(sizes.rows, 1, 1 << 20));
  options.add({"micro-batches", "N", ""}, number_into(sizes.micro_batches, 1, 1024));
  options.add({"threads", "N", ""}, number_into(threads, 1, 1024));
  if (auto code = sys::answer(options.read(words), options)) return *code;
  Group world = init();
  at::set_num_threads(threads);
  PipelineWork work(sizes, world);
  serve(std::cin, std::cout, {{"ready", true}, {"products", matmul::library()}},
        [&](const std::string& line) {
          auto found = seconds_of_steps(line, [&] { return work.seconds(); });
          found["losses"] = {work.loss()};
          found["measured"] = work.measured();
          found["promised"] = work.promised();
          return found;
        });
  return 0;
}

}  // namespace lockstep::bench
