// Your own model and dataset. Shows that the number of ranks does not change the result: the loss
// is the same for every number of ranks, because the global batch is the same.
//
//   lockstep run -n 3 04_your_own_model
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <exception>

namespace ls = lockstep;

// y = sin(3 x). A dataset is any type with size() and get() or get_batch().
struct Sine {
  std::size_t size() const { return 1200; }
  torch::data::Example<> get(std::size_t index) const {
    const double x = 2.0 * double(index) / double(size()) - 1.0;
    return {torch::tensor({x}, torch::kFloat64), torch::tensor({std::sin(3 * x)}, torch::kFloat64)};
  }
};

struct NetImpl : torch::nn::Module {
  NetImpl()
      : in(register_module("in", torch::nn::Linear(1, 64))),
        out(register_module("out", torch::nn::Linear(64, 1))) {
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(in(x))); }
  torch::nn::Linear in, out;
};
TORCH_MODULE(Net);

int main() try {
  ls::Group world = ls::init();
  torch::manual_seed(
      world.rank());  // ranks begin with different weights; the handle broadcasts those of rank 0
  Net model;
  ls::DistributedDataParallel ddp(model, world, {.bucket_bytes = 1024});
  torch::optim::Adam adam(ddp.parameters(), 0.01);
  auto loader = ls::data::loader(Sine(), {.batch_size = 60, .group = world, .workers = 2});

  torch::Tensor loss;
  for (int epoch = 0; epoch < 100; ++epoch) {
    for (auto& batch : loader.epoch(epoch)) {
      ddp.zero_grad();
      loss = torch::mse_loss(model->forward(batch.data), batch.target);
      loss.backward();
      ddp.clip_grad_norm(1.0);
      adam.step();
    }
  }
  loss = loss.detach();
  world.all_reduce(loss, ls::Op::average).wait();
  if (world.is_root()) std::printf("final loss %.10f\n", loss.item<double>());
  return loss.item<double>() < 1e-3 ? 0 : 1;
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
