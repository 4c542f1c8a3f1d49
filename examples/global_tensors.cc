// Global tensors: one tensor over all ranks of a mesh, with placements that the program chooses.
//
//   lockstep run -n 4 build/release/examples/global_tensors
#include <lockstep/lockstep.h>
#include <torch/torch.h>

namespace ls = lockstep;

int main() {
  ls::Group world = ls::init();
  ls::Mesh mesh(world, {{"dp", 2}, {"tp", -1}});

  at::Tensor batch = ls::distribute(torch::ones({6, 4}), mesh, {ls::Shard(0), ls::Replicate()});
  at::Tensor weight = ls::distribute(torch::ones({8, 4}), mesh, {ls::Replicate(), ls::Shard(0)});
  at::Tensor hidden = torch::relu(torch::linear(batch, weight));  // no communication
  if (world.is_root()) std::cout << ls::describe(hidden) << "\n";

  at::Tensor rows = ls::redistribute(hidden, {ls::Shard(0), ls::Replicate()});  // gathers columns
  at::Tensor all = ls::full_tensor(hidden);                                     // a plain tensor
  if (world.is_root()) std::cout << ls::describe(rows) << "\n" << ls::describe(all) << "\n";

  // An unmodified module with sharded parameters: columns of the first layer, rows of the second.
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(4, 8), torch::nn::GELU(), torch::nn::Linear(8, 2));
  auto parameters = model->named_parameters();
  ls::distribute_(parameters["0.weight"], mesh, {ls::Replicate(), ls::Shard(0)});
  ls::distribute_(parameters["0.bias"], mesh, {ls::Replicate(), ls::Shard(0)});
  ls::distribute_(parameters["2.weight"], mesh, {ls::Replicate(), ls::Shard(1)});
  ls::distribute_(parameters["2.bias"], mesh, {ls::Replicate(), ls::Replicate()});

  at::Tensor target = ls::distribute(torch::zeros({6, 2}), mesh, {ls::Shard(0), ls::Replicate()});
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  double last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = (model->forward(batch) - target).square().mean();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
  }
  if (world.is_root()) std::cout << "final loss " << (last < 0.01 ? "below" : "above") << " 0.01\n";

  ls::Traffic moved = ls::traffic(mesh);
  if (world.is_root()) std::cout << moved.calls() << " collectives\n";
}
