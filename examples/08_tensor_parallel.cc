// Tensor parallelism: the ranks of one axis compute every layer of a GPT together; the ranks of the
// other axis train on different data. The model is the unmodified lockstep::models::Gpt.
//
//   lockstep run -n 4 build/release/examples/08_tensor_parallel
#include <lockstep/lockstep.h>
#include <torch/torch.h>

namespace ls = lockstep;

int main() {
  ls::Group world = ls::init();
  ls::Mesh mesh(world, {{"dp", -1}, {"tp", 2}});
  torch::manual_seed(1);

  const ls::models::GptOptions options{
      .layers = 2, .heads = 4, .hidden_size = 64, .context_length = 16, .vocabulary = 50};
  auto model = ls::deferred([&] { return ls::models::Gpt(options); });
  auto gpt = ls::parallelize(model, mesh, {.sequence_parallel = true});
  ls::optim::AdamW adamw(gpt.parameters(), 3e-3);
  if (world.is_root()) std::cout << gpt.plan();

  double last = 0;
  for (int step = 0; step < 60; ++step) {
    // Counting from a start value: 16 rows, of which each rank of dp takes its own.
    const at::Tensor batch = (torch::arange(16).view({16, 1}) * 5 + step + torch::arange(17)) % 50;
    const at::Tensor rows = batch.tensor_split(gpt.data().size())[gpt.data().rank()];
    const at::Tensor ids = rows.narrow(1, 0, 16), targets = rows.narrow(1, 1, 16);

    // Calls the module's own forward without materializing all logits, as gpt.step() does.
    gpt.zero_grad();
    at::Tensor hidden = model->transformer->forward(ids);
    at::Tensor loss = ls::linear_cross_entropy(hidden, model->transformer->wte->weight, targets);
    loss.backward();
    gpt.clip_grad_norm(1.0);
    adamw.step();
    last = loss.item<double>();
  }
  if (world.is_root()) std::cout << "final loss " << (last < 0.5 ? "below" : "above") << " 0.5\n";
}
