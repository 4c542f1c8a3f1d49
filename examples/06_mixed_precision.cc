// Mixed precision: the ranks keep float32 shards, and compute in 16 bits with the gathered
// parameters. Shows that float16 needs a loss scale, while bfloat16 does not, and that both reach
// the loss of float32.
//
//   lockstep run -n 2 06_mixed_precision
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <optional>

namespace ls = lockstep;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : in(register_module("in", torch::nn::Linear(1, 64))),
        middle(register_module("middle", torch::nn::Linear(64, 64))),
        out(register_module("out", torch::nn::Linear(64, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::tanh(middle(torch::tanh(in(x)))));
  }
  torch::nn::Linear in, middle, out;
};
TORCH_MODULE(Net);

// Returns the mean loss of the last steps.
static double train(const ls::Group& world, std::optional<torch::ScalarType> dtype) {
  torch::manual_seed(1);
  Net model;
  auto sharded = ls::fully_shard(
      model, world,
      {.units = {"in", "middle", "out"},
       .compute_dtype = dtype,             // parameters are gathered and used in this dtype
       .reduce_dtype = torch::kFloat32});  // gradients are summed over ranks in this dtype
  ls::optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.003));
  // Small gradients underflow in float16, so the loss is scaled by a power of two. If a gradient
  // overflows, all ranks skip the step, and the scale is reduced.
  ls::optim::GradScaler scaler({.enabled = dtype == torch::kFloat16});

  double sum = 0;
  for (int step = 0; step < 400; ++step) {
    torch::manual_seed(step);  // a batch of 64 rows; each rank takes its own rows
    torch::Tensor x = torch::rand({64, 1}).tensor_split(world.size())[world.rank()] * 2 - 1;
    torch::Tensor target = torch::sin(3 * x);
    sharded.zero_grad();
    torch::Tensor output = model->forward(x.to(dtype.value_or(torch::kFloat32)));
    torch::Tensor loss = torch::mse_loss(output.to(torch::kFloat32), target);
    scaler.scale(loss).backward();
    scaler.step(adamw, {.clip_norm = 10});  // unscales, clips and updates the float32 shards
    scaler.update();
    if (step >= 350) sum += loss.item<double>() / 50;
  }
  torch::Tensor mean = torch::tensor({sum}, torch::kFloat64);
  ls::Group(world).all_reduce(mean, ls::Op::average).wait();
  return mean.item<double>();
}

int main() try {
  ls::Group world = ls::init();
  double most = 0;
  for (auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    double loss = train(world, dtype);
    most = std::fmax(most, loss);
    if (world.is_root()) std::printf("%s: loss %.5f\n", torch::toString(dtype), loss);
  }
  return most < 1e-2 ? 0 : 1;
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
