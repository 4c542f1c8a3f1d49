// A model in two stages on two ranks, and the time that each rank waits. Shows how to split a model
// that is not a Sequential without editing it, that the loop does not change, and that the loss is
// the same on every rank and with every schedule.
//
//   lockstep run -n 2 09_pipeline
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

// The steps of forward(), each with the modules that it uses.
std::vector<ls::ModelPiece> pieces_of(const Net& net) {
  std::vector<ls::ModelPiece> pieces;
  pieces.push_back({"in", {"in"}, ls::stage_of("in", net->in).forward});
  for (int i = 0; i < 3; ++i) {
    std::string name = "blocks." + std::to_string(i);
    pieces.push_back(
        {name, {name}, ls::stage_of(name, Block(net->blocks->ptr<BlockImpl>(i))).forward});
  }
  pieces.push_back({"out", {"out"}, ls::stage_of("out", net->out).forward});
  return pieces;
}

torch::Tensor mean_square(const ls::Tensors& outputs, const ls::Tensors& targets) {
  return torch::mse_loss(outputs[0], targets[0]);
}

double train(ls::Group world, const std::string& name, std::vector<std::string> points) {
  torch::manual_seed(1);  // the same model on every rank
  Net model;
  auto stages = ls::split(*model, pieces_of(model), points);
  auto schedule = ls::plan::make_schedule(
      name, {.stages = static_cast<int>(stages.size()), .micro_batches = 6});
  ls::Pipeline pipeline(stages, schedule, world, mean_square);
  torch::optim::AdamW adamw(pipeline.parameters(), torch::optim::AdamWOptions(0.003));

  torch::Tensor loss;
  for (int step = 0; step < 300; ++step) {
    torch::Tensor x = torch::rand({60, 1}) * 2 - 1;
    pipeline.zero_grad();
    loss = pipeline.step({x}, {torch::sin(3 * x)});  // forward, loss and backward
    pipeline.clip_grad_norm(1.0);
    adamw.step();
  }
  const auto [stage_times, seconds, busy] = pipeline.measured();
  std::printf("%s: rank %d has %zu stages and was busy for %.0f %% of the last step\n",
              name.c_str(), world.rank(), pipeline.stages().size(), 100 * busy / seconds);
  return loss.item<double>();
}

int main() try {
  ls::Group world = ls::init();
  double loss = train(world, "1f1b", {"blocks.1"});
  double same = train(world, "zbv", {"blocks.0", "blocks.1", "blocks.2"});
  if (world.is_root()) std::printf("final loss %.6f, with both schedules\n", loss);
  return loss == same && loss < 1e-2 ? 0 : 1;
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
