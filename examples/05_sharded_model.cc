// The same training with parameters, gradients and optimizer state sharded over the ranks. Shows
// that only the handle differs from the program with DistributedDataParallel, that each rank's
// optimizer has only its own part, and that the result is the same model. No rank ever has the
// whole model in memory.
//
//   lockstep run -n 3 05_sharded_model [FOLDER]      FOLDER: for unused parts (offload)
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <exception>

namespace ls = lockstep;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width)
      : wide(register_module("wide", torch::nn::Linear(width, 4 * width))),
        narrow(register_module("narrow", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + narrow(torch::tanh(wide(x))); }
  torch::nn::Linear wide, narrow;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl()
      : in(register_module("in", torch::nn::Linear(1, 32))),
        blocks(register_module("blocks", torch::nn::Sequential(Block(32), Block(32), Block(32)))),
        out(register_module("out", torch::nn::Linear(32, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) { return out(blocks->forward(in(x))); }
  torch::nn::Linear in;
  torch::nn::Sequential blocks;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  Net model = ls::deferred([] { return Net(); }, {.smallest = 1024});
  auto sharded = ls::fully_shard(
      model, world,
      {.units = {"blocks.*"}, .level = ls::ShardLevel::full, .offload = argc > 1 ? argv[1] : ""});
  ls::optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.003),
                         {.memory = sharded.state_memory()});

  torch::Tensor loss;
  for (int step = 0; step < 300; ++step) {
    torch::manual_seed(step);  // a batch of 60 rows; each rank takes its own rows
    torch::Tensor x = torch::rand({60, 1}).tensor_split(world.size())[world.rank()] * 2 - 1;
    sharded.zero_grad();
    loss = torch::mse_loss(model->forward(x), torch::sin(3 * x));
    loss.backward();
    sharded.clip_grad_norm(1.0);
    adamw.step();
  }

  std::int64_t mine = 0, all = 0;
  for (const ls::Part& part : sharded.named_parameters()) {
    mine += part.slice.range.length();
    all += c10::multiply_integers(part.slice.sizes);
  }
  loss = loss.detach();
  world.all_reduce(loss, ls::Op::average).wait();
  {
    // Collective; inside the scope, a single rank may read the model.
    auto scope = sharded.unsharded();
    if (world.is_root())
      std::printf("norm of the first weight %.3f\n", model->in->weight.norm().item<double>());
  }
  std::printf("rank %d updates %lld of %lld parameters\n", world.rank(),
              static_cast<long long>(mine), static_cast<long long>(all));
  if (world.is_root()) std::printf("final loss %.6f\n", loss.item<double>());
  return loss.item<double>() < 1e-2 ? 0 : 1;
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
