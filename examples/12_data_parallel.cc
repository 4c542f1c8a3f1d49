// One process trains on several devices with DataParallel, or several processes train with
// DistributedDataParallel. Shows the code that each needs, that both give bitwise equal results,
// and the time of a step.
//
//   12_data_parallel [DEVICES]                 one process, DEVICES groups of its cores (2)
//   lockstep run -n 2 12_data_parallel         one process per rank
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>

namespace ls = lockstep;

static constexpr int steps = 40;
static constexpr std::int64_t rows = 256, width = 512;

static torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(64, width), torch::nn::ReLU(),
                               torch::nn::Linear(width, width), torch::nn::ReLU(),
                               torch::nn::Linear(width, 1));
}

// Returns the whole batch of a step, equal in every process.
static torch::Tensor batch_of(int step) {
  torch::manual_seed(1000 + step);
  return torch::rand({rows, 64}) * 2 - 1;
}

static torch::Tensor loss_of(torch::nn::Sequential& model, const torch::Tensor& x) {
  return torch::mse_loss(model->forward(x), x.sum(1, true).sin());
}

// Prints the result, so that two runs can be compared.
static void report(const char* how, torch::nn::Sequential& model, double loss, double seconds) {
  torch::NoGradGuard no_grad;
  std::int64_t bits = 0;  // independent of the order of addition
  for (const auto& parameter : model->parameters())
    bits += parameter.view(torch::kInt).to(torch::kLong).sum().item<std::int64_t>();
  std::printf("%s: loss %.6f, bits of the model %lld, %.2f ms a step\n", how, loss,
              static_cast<long long>(bits), 1e3 * seconds / steps);
}

static double train(const std::function<void(int)>& step) {
  step(0);  // warm-up: the first step allocates memory and starts threads
  auto began = std::chrono::steady_clock::now();
  for (int number = 1; number <= steps; ++number) step(number);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

static void one_process(int devices) {
  torch::nn::Sequential model = make_model();
  ls::DataParallel dp(model, ls::default_devices(devices));
  ls::optim::AdamW adamw(dp.parameters(), torch::optim::AdamWOptions(1e-3));
  double loss = 0;
  double seconds = train([&](int step) {
    dp.zero_grad();
    loss = dp.backward(loss_of, batch_of(step)).item<double>();
    adamw.step();
  });
  std::printf("%s ... %s\n", ls::describe(dp.devices().front(), 0).c_str(),
              ls::describe(dp.devices().back(), devices - 1).c_str());
  report("DataParallel", model, loss, seconds);
}

static void many_processes(ls::Group world) {
  torch::nn::Sequential model = make_model();
  ls::DistributedDataParallel ddp(model, world);
  ls::optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(1e-3));
  torch::Tensor loss;
  double seconds = train([&](int step) {
    ddp.zero_grad();
    loss = loss_of(model, batch_of(step).tensor_split(world.size())[world.rank()]);
    loss.backward();
    adamw.step();
  });
  loss = loss.detach().to(torch::kDouble);
  world.all_reduce(loss, ls::Op::average).wait();
  if (world.is_root()) report("DistributedDataParallel", model, loss.item<double>(), seconds);
}

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  if (world.size() > 1) {
    many_processes(world);
  } else {
    one_process(argc > 1 ? std::atoi(argv[1]) : 2);
  }
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
