// Your own model on a mesh of stages, layers, shards and copies: parallel_plan() has all
// information about the model that parallelize() needs. Ranks and losses are as in 10_all_axes.cc.
//
//   lockstep run -n 8 build/release/examples/21_your_own_plan pp=2,tp=2,fsdp=2
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

namespace ls = lockstep;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width)
      : wide(register_module("wide", torch::nn::Linear(width, 4 * width))),
        narrow(register_module("narrow", torch::nn::Linear(4 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + narrow(torch::tanh(wide(x))); }
  torch::nn::Linear wide, narrow;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl()
      : in(register_module("in", torch::nn::Linear(8, 64))),
        blocks(register_module("blocks", torch::nn::Sequential(Block(64), Block(64), Block(64)))),
        out(register_module("out", torch::nn::Linear(64, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return out(blocks->forward(in(x))); }
  torch::nn::Linear in;
  torch::nn::Sequential blocks;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

at::Tensor mean_square(const ls::Tensors& outputs, const ls::Tensors& targets) {
  return torch::mse_loss(outputs[0], targets[0]);
}

// tensor: how tp shards layers. blocks: units that fsdp gathers. pieces: where pp may split.
ls::ParallelPlan parallel_plan(const Net& net) {
  ls::ParallelPlan plan{
      .tensor = {{"blocks.*.wide", ls::Colwise()}, {"blocks.*.narrow", ls::Rowwise()}},
      .blocks = {"blocks.*"},
      .loss = mean_square};
  plan.pieces.push_back(ls::piece_of("in", net->in));
  for (int i = 0; i < 3; ++i)
    plan.pieces.push_back(
        ls::piece_of("blocks." + std::to_string(i), Block(net->blocks->ptr<BlockImpl>(i))));
  plan.pieces.push_back(ls::piece_of("out", net->out));
  return plan;
}

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const ls::Mesh mesh(world, ls::parse_axes(argc > 1 ? argv[1] : "dp=-1"));
  torch::manual_seed(1);
  ls::ParallelModel model = ls::parallelize(Net(), mesh, {.micro_batches = 4});
  ls::optim::AdamW adamw(model.parameters(), 3e-3);
  ls::Group data = model.data();

  for (int step = 0; step < 5; ++step) {
    const at::Tensor batch = torch::sin(torch::arange(48 * 8).view({48, 8}) * (step + 1));
    const at::Tensor rows = batch.tensor_split(data.size())[data.rank()];
    model.zero_grad();
    at::Tensor loss = model.step({rows}, {rows.sum(1, true)});
    model.clip_grad_norm(1.0);
    adamw.step();
    data.all_reduce(loss, ls::Op::average).wait();
    if (world.is_root()) std::printf("step %d loss %.9f\n", step, loss.item<double>());
  }
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
