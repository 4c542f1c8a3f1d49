// A user's program with an installed Lockstep: ranks as threads and, under the launcher, as
// processes; DistributedDataParallel; errors that the library throws.
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <typeinfo>

namespace ls = lockstep;

static void train(ls::Group group) {
  torch::nn::Linear model(4, 1);
  ls::DistributedDataParallel ddp(model, group);
  torch::optim::SGD sgd(ddp.parameters(), 0.1);
  torch::Tensor input = torch::full({2, 4}, group.rank() + 1.0);
  model->forward(input).sum().backward();
  // The mean of 2 * (rank + 1) over all ranks.
  if (!model->weight.grad().allclose(torch::full({1, 4}, group.size() + 1.0))) std::abort();
  sgd.step();
}

// Checks that error types of the library and of this program are identical.
static void check_errors(ls::Group group) {
  try {
    group.broadcast(torch::zeros({1}), group.size()).wait();
  } catch (const std::exception& error) {
    if (typeid(error) != typeid(ls::InvalidArgument)) std::abort();
    if (dynamic_cast<const ls::Error*>(&error) == nullptr) std::abort();
    return;
  }
  std::abort();
}

int main() {
  std::mutex print;
  ls::run_as_threads(3, [&](ls::Group group) {
    at::Tensor value = at::full({1}, group.rank() + 1.0);
    group.all_reduce(value).wait();
    train(group);
    check_errors(group);
    std::lock_guard lock(print);
    std::printf("rank %d of %d: sum %g\n", group.rank(), group.size(), value.item<double>());
  });
  bool is_lost = false;
  try {
    ls::run_as_threads(2, [](ls::Group group) {
      if (group.rank() == 0) group.barrier().wait();
    });
  } catch (const ls::PeerLost&) {
    is_lost = true;
  }
  ls::Group world = ls::init();
  train(world);
  world.barrier().wait();
  torch::nn::Linear large(8, 8);
  auto sharded = ls::fully_shard(large, world);  // registers the dispatch key
  std::printf("Lockstep %.*s, errors %s\n", static_cast<int>(ls::version().size()),
              ls::version().data(), is_lost ? "cross" : "are lost");
  return is_lost ? 0 : 1;
}
