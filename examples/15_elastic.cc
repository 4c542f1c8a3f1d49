// Training that continues after ranks are lost, with a bitwise equal result. Try it:
//
//   lockstep run -n 3 --max-restarts 10 ./15_elastic FOLDER &
//   kill -9 (one of the three)
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr std::int64_t slots = 6, rows = 8, steps = 300;

// Computes the gradients of this rank's slots. Returns the loss of all slots.
double backward(std::int64_t step, lockstep::models::Mlp& model, lockstep::Handle& handle,
                lockstep::SlotGradients& gradients) {
  auto alone = handle.no_sync();  // reduce() sums over ranks instead
  std::vector<double> losses;
  for (std::int64_t slot = gradients.begin(); slot < gradients.end(); ++slot) {
    torch::manual_seed(static_cast<std::uint64_t>(step * slots + slot));  // independent of the rank
    const torch::Tensor input = torch::randn({rows, 8});
    torch::Tensor loss = torch::mse_loss(model->forward(input), input.sum(1, /*keepdim=*/true));
    loss.backward();
    losses.push_back(loss.item<double>());
    gradients.take(slot);
  }
  gradients.reduce(slots);
  return lockstep::tree_sum(gradients.gather(losses)) / slots;
}

}  // namespace

int main(int count, char** words) {
  const char* folder = count > 1 ? words[1] : "elastic-checkpoints";
  lockstep::ElasticState state({.out = folder, .save_every = 100});
  lockstep::elastic(state, [&](lockstep::ElasticState& state) {
    torch::manual_seed(1);
    lockstep::models::Mlp model(lockstep::models::MlpOptions{.sizes = {8, 32, 1}});
    lockstep::DistributedDataParallel ddp(model, state.group());
    torch::optim::AdamW adamw(ddp.parameters(), 1e-2);
    lockstep::SlotGradients gradients(state.group(), slots, ddp.parameters());
    state.attach(ddp, adamw);
    while (state.step() < steps) {
      ddp.zero_grad();
      double loss = backward(state.step(), model, ddp, gradients);
      adamw.step();
      state.numbers()["loss"] = loss;
      state.commit();
    }
    if (state.group().is_root())
      std::printf("final loss %.17g, goodput %.3f\n", state.numbers()["loss"], state.goodput());
  });
  return 0;
}
