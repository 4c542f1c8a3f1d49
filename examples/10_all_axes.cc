// One program for every mesh. The argument lists the axes: pipeline stages (pp), copies (dp),
// shards (fsdp), parts of each layer (tp), parts of each sequence (cp) and owners of experts (ep).
// The losses are the same on every mesh; a mixture of experts (`moe`) uses float64 to show that.
//
//   lockstep run -n 8 build/release/examples/10_all_axes pp=2,dp=-1,fsdp=2,tp=2
//   lockstep run -n 2 build/release/examples/10_all_axes dp=-1
//   lockstep run -n 4 build/release/examples/10_all_axes cp=2,ep=2 moe
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

namespace ls = lockstep;

const ls::models::GptOptions shape{
    .layers = 4, .heads = 4, .hidden_size = 64, .context_length = 16, .vocabulary = 50};

template <typename Net>
void train(Net model, const ls::Mesh& mesh, int micro_batches) {
  ls::ParallelModel gpt = ls::parallelize(
      model, mesh,
      {.activation_checkpointing = {"transformer.h.*"}, .micro_batches = micro_batches});
  ls::optim::AdamW adamw(gpt.parameters(), 3e-3);
  ls::Group data = gpt.data();
  if (mesh.group().is_root()) std::printf("%s", gpt.plan().c_str());

  for (int step = 0; step < 5; ++step) {
    // Counting from a start value: a batch of 48 rows, equal on every mesh, and this rank's rows.
    const at::Tensor batch = (torch::arange(48).view({48, 1}) * 5 + step + torch::arange(17)) % 50;
    const at::Tensor rows = batch.tensor_split(data.size())[data.rank()];
    gpt.zero_grad();
    at::Tensor loss = gpt.step({rows.narrow(1, 0, 16)}, {rows.narrow(1, 1, 16)});
    gpt.clip_grad_norm(1.0);
    adamw.step();
    data.all_reduce(loss, ls::Op::average).wait();
    if (mesh.group().is_root()) std::printf("step %d loss %.9f\n", step, loss.item<double>());
  }
}

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const ls::Mesh mesh(world, ls::parse_axes(argc > 1 ? argv[1] : "dp=-1"));
  torch::manual_seed(1);
  if (argc > 2 && argv[2] == std::string("moe")) {
    const ls::models::MoeOptions options{.gpt = shape, .mixture = {.capacity_factor = 1.5}};
    ls::models::Moe model(options);
    model->to(torch::kDouble);
    train(model, mesh, 1);  // each micro-batch dispatches its tokens separately
  } else {
    train(ls::deferred([] { return ls::models::Gpt(shape); }), mesh, 4);
  }
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
