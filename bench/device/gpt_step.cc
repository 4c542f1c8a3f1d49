// Measures time and memory of a GPT's training steps on the GPU of this rank. For comparison,
// gpt_step.py trains the same model with the same batch, dtype and optimizer by PyTorch's
// DistributedDataParallel.
//
//   lockstep run -n 1 gpt_step MESH DTYPE [LAYERS WIDTH ROWS TOKENS]
#include <lockstep/lockstep.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

namespace ls = lockstep;

namespace {

constexpr int warm_up = 3, measured = 10;
const at::Device gpu(at::kCUDA, 0);

std::int64_t number(int argc, char** argv, int at, std::int64_t usual) {
  return argc > at ? std::atoll(argv[at]) : usual;
}

double peak_gigabytes() {
  const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(0);
  constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<double>(stats.allocated_bytes[all].peak) / 1e9;
}

double milliseconds_of_step(ls::ParallelModel& model, torch::optim::Optimizer& optimizer,
                            const at::Tensor& ids, const at::Tensor& targets, double& loss) {
  torch::cuda::synchronize();
  const auto begin = std::chrono::steady_clock::now();
  model.zero_grad();
  const at::Tensor value = model.step({ids}, {targets});
  optimizer.step();
  torch::cuda::synchronize();
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
  loss = value.item<double>();
  return taken.count();
}

void run(int argc, char** argv) {
  ls::Group world = ls::init();
  const ls::Mesh mesh(world, ls::parse_axes(argc > 1 ? argv[1] : "dp=-1"));
  const auto dtype = argc > 2 && argv[2] == std::string("bf16") ? at::kBFloat16 : at::kFloat;
  const ls::models::GptOptions shape{.layers = number(argc, argv, 3, 12),
                                     .heads = number(argc, argv, 4, 768) / 64,
                                     .hidden_size = number(argc, argv, 4, 768),
                                     .context_length = number(argc, argv, 6, 512),
                                     .vocabulary = 50304};
  torch::manual_seed(1);
  ls::models::Gpt net(shape);
  net->to(gpu, dtype);
  ls::ParallelModel model = ls::parallelize(net, mesh);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-4));
  const std::int64_t rows = number(argc, argv, 5, 8);
  const at::Tensor all = (at::arange(rows * (shape.context_length + 1)) * 7919 % 50257)
                             .view({rows, shape.context_length + 1})
                             .to(gpu);
  std::vector<double> times;
  double loss = 0;
  for (int step = 0; step < warm_up + measured; ++step) {
    const double time =
        milliseconds_of_step(model, optimizer, all.narrow(1, 0, shape.context_length),
                             all.narrow(1, 1, shape.context_length), loss);
    if (step >= warm_up) times.push_back(time);
  }
  std::ranges::sort(times);
  if (world.is_root())
    std::printf("ours %s %s ranks %d: %.1f ms (%.1f to %.1f), peak %.2f GB, loss %.4f\n",
                argc > 1 ? argv[1] : "dp=-1", argc > 2 ? argv[2] : "float32", world.size(),
                times[times.size() / 2], times.front(), times.back(), peak_gigabytes(), loss);
}

}  // namespace

int main(int argc, char** argv) try { run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
