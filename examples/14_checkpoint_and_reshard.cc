// A run on all ranks under fully_shard() saves while it goes on, in three files
// a checkpoint; then half of the ranks go on from the middle of it under
// DistributedDataParallel, and come to the same bits. Shows what is forgotten
// nowhere: parameters, optimizer state, scheduler, the place in the data, and
// that a checkpoint does not depend on who wrote it.
//
//   lockstep run -n 4 14_checkpoint_and_reshard OUT
//   lockstep checkpoint show OUT
//   lockstep checkpoint reshard OUT one-file --shards 1      what any reader of safetensors opens
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

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

constexpr int last_step = 200, middle_step = 100;

struct Training {
  explicit Training(bool is_sharded, const ls::Group& group) {
    torch::manual_seed(1);
    model = Net();
    if (is_sharded)
      handle = ls::fully_shard(model, group, {.units = {"middle"}});
    else
      handle = ls::DistributedDataParallel(model, group);
    adamw =
        std::make_unique<ls::optim::AdamW>(handle.parameters(), torch::optim::AdamWOptions(0.01));
    scheduler =
        std::make_unique<ls::optim::Scheduler>(*adamw, ls::optim::cosine({.steps = last_step}));
  }

  // The same batch on every rank, so that no count of ranks makes another sum.
  double step(std::int64_t number) {
    torch::Tensor x = torch::arange(60).mul(0.37 * static_cast<double>(number)).sin().view({60, 1});
    handle.zero_grad();
    torch::Tensor loss = torch::mse_loss(model->forward(x), torch::sin(3 * x));
    loss.backward();
    adamw->step();
    scheduler->step();
    return loss.item<double>();
  }

  Net model = nullptr;
  ls::Handle handle;
  std::unique_ptr<ls::optim::AdamW> adamw;
  std::unique_ptr<ls::optim::Scheduler> scheduler;
};

double train_and_save(const std::filesystem::path& out, const ls::Group& world) {
  Training training(/*is_sharded=*/true, world);
  ls::checkpoint::AsyncSaver saver(world);
  double loss = 0;
  for (std::int64_t step = 1; step <= last_step; ++step) {
    loss = training.step(step);
    if (step % middle_step == 0)
      saver.save(out, training.handle, *training.adamw, {.step = step},
                 {.scheduler = training.scheduler.get(), .sharding = {.files = 3}});
  }
  saver.wait();  // the last checkpoint is on the disk
  return loss;
}

double go_on(const std::filesystem::path& folder, const ls::Group& group) {
  Training training(/*is_sharded=*/false, group);
  std::int64_t step = ls::checkpoint::load(folder, training.handle, *training.adamw,
                                           {.scheduler = training.scheduler.get()})
                          .step;
  double loss = 0;
  while (step < last_step) loss = training.step(++step);
  return loss;
}

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const std::filesystem::path out = argc > 1 ? argv[1] : "checkpoints";
  const double straight = train_and_save(out, world);
  const bool is_first_half = world.rank() < (world.size() + 1) / 2;
  ls::Group half = world.split(is_first_half ? 0 : 1);
  double again = straight;
  if (is_first_half) again = go_on(out / ls::checkpoint::checkpoint_name(middle_step), half);
  world.barrier().wait();
  if (world.is_root())
    std::printf("loss of step %d: %.9g on %d ranks, %.9g from step %d on %d ranks\n", last_step,
                straight, world.size(), again, middle_step, half.size());
  return straight == again ? 0 : 1;
} catch (const std::exception& error) {  // one line, not an abort
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
