// A mixture of experts: the ranks of one axis share the experts of a Gpt's layers, and tokens are
// sent to their experts and back. Every rank has its own rows.
//
//   lockstep run -n 4 build/release/examples/18_mixture_of_experts
#include <lockstep/lockstep.h>
#include <torch/torch.h>

namespace ls = lockstep;

int main() {
  ls::Group world = ls::init();
  ls::Mesh mesh(world, {{"dp", -1}, {"ep", 2}});
  torch::manual_seed(1);

  const ls::models::MoeOptions options{
      .gpt = {.layers = 2, .heads = 4, .hidden_size = 64, .context_length = 16, .vocabulary = 50},
      .mixture = {.experts = 4, .capacity_factor = 1.25}};
  auto model = ls::models::Moe(options);
  auto moe = ls::parallelize(model, mesh);
  ls::optim::AdamW adamw(moe.parameters(), 1e-3);
  if (world.is_root()) std::cout << moe.plan();

  double last = 0;
  for (int step = 0; step < 150; ++step) {
    // Counting from a start value: 32 rows, of which each rank takes its own.
    const at::Tensor batch = (torch::arange(32).view({32, 1}) * 5 + step + torch::arange(17)) % 50;
    const at::Tensor rows = batch.tensor_split(moe.data().size())[moe.data().rank()];
    moe.zero_grad();
    at::Tensor loss = moe.step({rows.narrow(1, 0, 16)}, {rows.narrow(1, 1, 16)});
    moe.clip_grad_norm(1.0);
    adamw.step();
    last = loss.item<double>();
  }
  const ls::models::MixtureLoad& load = model->mixtures().front()->last_load();
  if (world.is_root())
    std::cout << "dropped " << load.dropped << " of " << 2 * 32 * 16 << " choices\n"
              << "final loss " << (last < 1.0 ? "below" : "above") << " 1.0\n";
}
