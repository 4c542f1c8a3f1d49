// Training across slow networks: the same model with DistributedDataParallel, which averages
// gradients in every step, and with DiLoCo, which averages the ranks' changes of 20 steps, with one
// byte per parameter. Prints the losses of both and the bytes that a rank has sent.
//
//   lockstep run -n 3 13_diloco
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <functional>

namespace ls = lockstep;

static constexpr int steps = 600;
static constexpr std::int64_t rows = 32;

static torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(8, 128), torch::nn::Tanh(),
                               torch::nn::Linear(128, 128), torch::nn::Tanh(),
                               torch::nn::Linear(128, 1));
}

// Each rank draws its own rows.
static torch::Tensor loss_of(torch::nn::Sequential& model, std::uint64_t seed) {
  torch::manual_seed(seed);
  torch::Tensor x = torch::rand({rows, 8}) * 2 - 1;
  return torch::mse_loss(model->forward(x), x.sum(1, true).sin());
}

// Trains the handle's parameters and calls `after_update` after each update. Returns the loss on
// rows that no rank has seen.
static double train(torch::nn::Sequential& model, ls::Handle& handle, const ls::Group& world,
                    const std::function<void()>& after_update) {
  ls::optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(2e-3));
  for (int step = 0; step < steps; ++step) {
    handle.zero_grad();
    loss_of(model, 1000 * step + world.rank() + 1).backward();
    adamw.step();
    after_update();
  }
  torch::NoGradGuard no_grad;
  return loss_of(model, 0).item<double>();
}

int main() try {
  ls::Group world = ls::init();

  torch::nn::Sequential each_step = make_model();
  ls::Handle ddp = ls::DistributedDataParallel(each_step, world);
  std::int64_t before = world.traffic().bytes;
  double ddp_loss = train(each_step, ddp, world, [] {});
  std::int64_t ddp_bytes = world.traffic().bytes - before;

  torch::nn::Sequential seldom = make_model();
  ls::DiLoCo diloco(seldom, world,
                    {.inner_steps = 20, .pseudo_gradients = ls::PseudoGradients::int8});
  double diloco_loss = train(seldom, diloco, world, [&] { diloco.step(); });

  if (!world.is_root()) return 0;
  std::printf("DistributedDataParallel: loss %.4f, %lld KB from each rank\n", ddp_loss,
              static_cast<long long>(ddp_bytes / 1000));
  std::printf("DiLoCo: loss %.4f, %lld KB from each rank\n", diloco_loss,
              static_cast<long long>(diloco.bytes_sent() / 1000));
  return 0;
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
