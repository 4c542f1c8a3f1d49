// Context parallelism: each rank of one axis has a part of every sequence; the ranks of the other
// axis train on different rows. The model is the unmodified lockstep::models::Gpt.
//
//   lockstep run -n 4 build/release/examples/17_context_parallel
#include <lockstep/lockstep.h>
#include <torch/torch.h>

namespace ls = lockstep;

int main() {
  ls::Group world = ls::init();
  ls::Mesh mesh(world, {{"dp", -1}, {"cp", 2}});
  torch::manual_seed(1);
  const ls::models::GptOptions options{
      .layers = 2, .heads = 4, .hidden_size = 64, .context_length = 64, .vocabulary = 50};
  auto model = ls::deferred([&] { return ls::models::Gpt(options); });
  auto gpt = ls::parallelize(model, mesh, {.context = ls::ContextMethod::ring});
  ls::optim::AdamW adamw(gpt.parameters(), 3e-3);

  double last = 0;
  for (int step = 0; step < 60; ++step) {
    // Counting from a start value: 8 rows, of which each rank of dp takes its own.
    const at::Tensor batch = (torch::arange(8).view({8, 1}) * 5 + step + torch::arange(65)) % 50;
    const at::Tensor rows = batch.tensor_split(gpt.data().size())[gpt.data().rank()];

    // The same as gpt.step({ids}, {targets}), by hand: the module's own code on parts of sequences.
    const ls::Tensors cut = gpt.cut({rows.narrow(1, 0, 64), rows.narrow(1, 1, 64)});
    if (step == 0 && world.is_root()) std::cout << ls::describe(cut[0]) << "\n";
    gpt.zero_grad();
    at::Tensor loss = model->loss(cut[0], cut[1]);
    loss.backward();
    gpt.clip_grad_norm(1.0);
    adamw.step();
    last = loss.item<double>();
  }
  if (world.is_root()) std::cout << "final loss " << (last < 0.5 ? "below" : "above") << " 0.5\n";
}
