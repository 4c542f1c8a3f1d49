// A run on shards of a model (fsdp) saves asynchronously, with three files per checkpoint. Then
// each half of the ranks resumes from the middle of that run with copies (dp), and gets bitwise the
// same result. A checkpoint has everything that a run needs to continue (parameters, optimizer
// state, scheduler, position in the data), and does not depend on the mesh that wrote it.
//
//   lockstep run -n 4 14_checkpoint_and_reshard OUT
//   lockstep checkpoint show OUT
//   lockstep checkpoint reshard OUT one-file --shards 1      for any reader of safetensors
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

torch::Tensor mean_square(const ls::Tensors& outputs, const ls::Tensors& targets) {
  return torch::mse_loss(outputs[0], targets[0]);
}

struct Training {
  explicit Training(const ls::Mesh& mesh)
      : model(parallelized(mesh)),
        adamw(model.parameters(), 0.01),
        scheduler(adamw, ls::optim::cosine({.steps = last_step})) {}

  static ls::ParallelModel parallelized(const ls::Mesh& mesh) {
    torch::manual_seed(1);
    return ls::parallelize(Net(), mesh, {.shard = {.units = {"middle"}}});
  }

  // The batch is the same on every rank, so that sums do not depend on the number of ranks.
  double step(std::int64_t number) {
    torch::Tensor x = torch::arange(60).mul(0.37 * static_cast<double>(number)).sin().view({60, 1});
    model.zero_grad();
    torch::Tensor loss = model.step({x}, {torch::sin(3 * x)}, mean_square);
    adamw.step();
    scheduler.step();
    return loss.item<double>();
  }

  ls::ParallelModel model;
  ls::optim::AdamW adamw;
  ls::optim::Scheduler scheduler;
};

double train_and_save(const std::filesystem::path& out, const ls::Mesh& mesh) {
  Training training(mesh);
  ls::checkpoint::AsyncSaver saver(mesh);
  double loss = 0;
  for (std::int64_t step = 1; step <= last_step; ++step) {
    loss = training.step(step);
    if (step % middle_step == 0)
      saver.save(out, training.model, training.adamw, {.step = step},
                 {.scheduler = &training.scheduler, .sharding = {.files = 3}});
  }
  saver.wait();  // blocks until the last checkpoint is on the disk
  return loss;
}

double go_on(const std::filesystem::path& folder, const ls::Mesh& mesh) {
  Training training(mesh);
  std::int64_t step = ls::checkpoint::load(folder, training.model, training.adamw,
                                           {.scheduler = &training.scheduler})
                          .step;
  double loss = 0;
  while (step < last_step) loss = training.step(++step);
  return loss;
}

int main(int argc, char** argv) try {  // needs an even number of ranks
  ls::Group world = ls::init();
  const std::filesystem::path out = argc > 1 ? argv[1] : "checkpoints";
  const double straight = train_and_save(out, ls::Mesh(world, {{"fsdp", -1}}));
  const ls::Mesh halves(world, {{"half", 2}, {"dp", -1}});
  const ls::Mesh half = halves.sub_mesh({"dp"});
  const double again = go_on(out / ls::checkpoint::checkpoint_name(middle_step), half);
  if (world.is_root())
    std::printf("loss of step %d: %.9g on %d ranks, %.9g from step %d on %d ranks\n", last_step,
                straight, world.size(), again, middle_step, half.size("dp"));
  return straight == again ? 0 : 1;
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
