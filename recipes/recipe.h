// Code that the recipes share: arguments, batches of numbers, and the training loop. An axis that
// is not in the mesh has one rank.
#pragma once

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <utility>

namespace recipe {

namespace ls = lockstep;

// The arguments MESH STEPS FOLDER, each of which may be omitted.
struct Arguments {
  std::string mesh = "dp=-1";
  int steps = 60;
  std::string folder = {};  // empty: save nothing
};

// Makes the mesh, calls body(mesh, arguments) and returns its exit code. Prints an exception as one
// line.
template <typename Body>
int run(int argc, char** argv, Arguments given, const Body& body) try {
  if (argc > 1) given.mesh = argv[1];
  if (argc > 2) given.steps = std::stoi(argv[2]);
  if (argc > 3) given.folder = argv[3];
  const ls::Mesh mesh(ls::init(), ls::parse_axes(given.mesh));
  torch::manual_seed(1);
  return body(mesh, given);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

// Returns inputs and targets of all ranks, 32 rows, for a step.
using Batches = std::function<std::pair<at::Tensor, at::Tensor>(int step)>;

// Counting from a start value: a row is 16 consecutive numbers below 50, and the target of each
// number is the next number.
inline std::pair<at::Tensor, at::Tensor> counting(int step) {
  const at::Tensor rows = (torch::arange(32).view({32, 1}) * 5 + step + torch::arange(17)) % 50;
  return {rows.narrow(1, 0, 16), rows.narrow(1, 1, 16)};
}

// Trains from step `begun` on. Returns 0 if the loss falls by half, or if the run is resumed after
// its loss has fallen; otherwise 1.
inline int train(ls::ParallelModel& model, torch::optim::Optimizer& optimizer, int steps,
                 const Batches& batches = counting, int begun = 0) {
  ls::Group data = model.data();
  double first = 0, last = 0;
  for (int step = begun; step < steps; ++step) {
    const auto [inputs, targets] = batches(step);
    model.zero_grad();
    // Each rank of data() takes its own rows.
    last = model
               .step({inputs.tensor_split(data.size())[data.rank()]},
                     {targets.tensor_split(data.size())[data.rank()]})
               .item<double>();
    model.clip_grad_norm(1.0);
    optimizer.step();
    if (step == begun) first = last;
  }
  const ls::HandleMemory memory = model.memory();
  if (model.mesh().group().is_root())
    std::printf("rank 0 keeps %lld bytes of parameters; loss %.3f, then %.3f\n",
                static_cast<long long>(memory.shards + memory.whole), first, last);
  return begun > 0 || last < first / 2 ? 0 : 1;
}

}  // namespace recipe
