// The two models of bench/peers/models.py, number for number: the same parameters in the same order
// from the same random numbers, the same batches, the same losses.
#pragma once

#include "apps/bench/model_size.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::apps {

// A model that makes its own batches.
class BenchModel : public torch::nn::Module {
 public:
  // The loss of the next batch, drawn from the default generator.
  virtual at::Tensor loss() = 0;
  // Patterns of the units that fully_shard() gathers together: one a layer or block.
  [[nodiscard]] virtual std::vector<std::string> units() const = 0;
};

// "mlp" or "gpt"; weights from the default generator.
[[nodiscard]] std::shared_ptr<BenchModel> make_bench_model(const std::string& name,
                                                           const ModelSize& size);

// What `mlp` is, in other sizes.
struct MlpSizes {
  std::int64_t width = 2048;
  int depth = 4;
  std::int64_t rows = 32;

  [[nodiscard]] std::int64_t parameters() const { return depth * (width + 1) * width; }
};
// `made` sees each layer as soon as it has its values.
[[nodiscard]] std::shared_ptr<BenchModel> make_mlp(
    const MlpSizes& sizes, const std::function<void(torch::nn::Module&)>& made = nullptr);

}  // namespace lockstep::apps
