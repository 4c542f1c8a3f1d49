// Context parallelism: the ranks of one axis have a part of every sequence each, those of the other
// axis train on different rows. The model is lockstep::models::Gpt as it is.
//
//   lockstep run -n 4 build/release/examples/17_context_parallel
#include <lockstep/lockstep.h>
#include <torch/torch.h>

namespace ls = lockstep;

// Counting: each row begins elsewhere.
at::Tensor rows_of(int step, int data) {
  const at::Tensor begin = torch::arange(4).view({4, 1}) * 5 + step + 3 * data;
  return (begin + torch::arange(65)) % 50;
}

const ls::models::GptOptions options{
    .layers = 2, .heads = 4, .width = 64, .block = 64, .vocabulary = 50};

// All ranks on the axis: a look at what each computes.
void look(const ls::Mesh& mesh) {
  auto model = ls::deferred([&] { return ls::models::Gpt(options); });
  auto cp = ls::context_parallel(*model, mesh["cp"], {.method = ls::ContextMethod::ring});
  torch::optim::AdamW adamw(cp.parameters(), torch::optim::AdamWOptions(1e-3));
  const at::Tensor rows = rows_of(0, 0);
  const at::Tensor ids = rows.narrow(1, 0, 64), targets = rows.narrow(1, 1, 64);

  cp.zero_grad();
  model->loss(cp.cut(ids), cp.cut(targets)).backward();
  adamw.step();
  if (mesh.group().is_root())
    std::cout << ls::describe(cp.cut(ids)) << ", " << cp.scores() << " scores a rank\n";
}

int main() {
  ls::Group world = ls::init();
  ls::Mesh mesh(world, {{"dp", -1}, {"tp", 1}, {"cp", 2}});
  torch::manual_seed(1);
  look(mesh);

  auto model = ls::deferred([&] { return ls::models::Gpt(options); });
  auto cp =
      ls::context_parallel(*model, mesh[{"tp", "cp"}],
                           {.plan = ls::gpt_tensor_plan(options),
                            .strategy =
                                [&](torch::nn::Module& parts) {
                                  return ls::DistributedDataParallel(parts, mesh[{"dp", "cp"}]);
                                },
                            .mesh = mesh});
  torch::optim::AdamW adamw(cp.parameters(), torch::optim::AdamWOptions(0.003));
  double last = 0;
  for (int step = 0; step < 60; ++step) {
    const at::Tensor rows = rows_of(step, mesh.coordinate("dp"));
    cp.zero_grad();
    at::Tensor loss = model->loss(cp.cut(rows.narrow(1, 0, 64)), cp.cut(rows.narrow(1, 1, 64)));
    loss.backward();
    cp.clip_grad_norm(1.0);
    adamw.step();
    last = loss.item<double>();
  }
  if (world.is_root()) std::cout << "final loss " << (last < 0.5 ? "below" : "above") << " 0.5\n";
}
