// A user's own model and loop: sharded, clipped, in mixed precision, saved and resumed.
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
  torch::Tensor forward(const torch::Tensor& x) { return x + narrow(torch::gelu(wide(x))); }
  torch::nn::Linear wide, narrow;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return out(blocks->forward(in(x))); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(1, 32));
  torch::nn::Sequential blocks =
      register_module("blocks", torch::nn::Sequential(Block(32), Block(32), Block(32)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 1));
};
TORCH_MODULE(Net);

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const std::string folder = argc > 1 ? argv[1] : "out";
  const std::int64_t steps = argc > 2 ? std::stoll(argv[2]) : 100;
  Net model = ls::deferred([] { return torch::manual_seed(1), Net(); }, {.smallest = 1024});
  ls::Handle handle =
      ls::fully_shard(model, world, {.units = {"blocks.*"}, .compute_dtype = torch::kBFloat16});
  torch::optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(1e-2));
  ls::optim::Scheduler scheduler(adamw, ls::optim::cosine({.steps = steps}));
  std::int64_t step = 0;
  if (auto saved = ls::checkpoint::load_latest(folder, handle, adamw, {.scheduler = &scheduler}))
    step = saved->step;
  while (step < steps) {
    torch::manual_seed(1000 + step++);  // the same 60 rows on any number of ranks
    torch::Tensor x = (torch::rand({60, 1}) * 2 - 1).chunk(world.size()).at(world.rank());
    handle.zero_grad();
    torch::Tensor found = model->forward(x.to(torch::kBFloat16)).to(torch::kFloat32);
    torch::Tensor loss = torch::mse_loss(found, torch::sin(3 * x));
    loss.backward();
    handle.clip_grad_norm(1.0);
    adamw.step();
    scheduler.step();
    world.all_reduce(loss.detach_(), ls::Op::average).wait();
    if (world.is_root()) std::printf("step %ld loss %.9g\n", long(step), loss.item<double>());
    std::fflush(stdout);
    if (step % 5 == 0)
      ls::checkpoint::save(folder, handle, adamw, {.step = step}, {.scheduler = &scheduler});
  }
} catch (const std::exception& error) {  // print one line instead of aborting
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
