// The two models of the benchmarks, models::Mlp and models::Gpt, with batches of random numbers.
// bench/peers/models.py defines the same models in Python, with the same random numbers.
#pragma once

#include <lockstep/parallel/tensor/plan.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::bench {

// "mlp", "gpt".
[[nodiscard]] std::span<const std::string_view> model_names();

struct ModelSize {
  std::int64_t width = 0;
  std::int64_t depth = 0;  // layers of an mlp, blocks of a gpt
  std::int64_t rows = 0;   // rows of a batch; 0: 32 for mlp, 8 for gpt
};
inline constexpr std::int64_t gpt_heads = 6;

// mlp 2048 x 4, gpt 384 x 6.
[[nodiscard]] ModelSize usual_size(std::string_view model);
// Throws UsageError if the number of gpt's heads does not divide the width.
void check_size(std::string_view model, const ModelSize& size);

struct BenchModel {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<std::string> units;  // patterns of the units that fully_shard() gathers
  TensorPlan plan;                 // how tensor parallelism shards the model
  // Returns the loss of a batch drawn from the generator, in the parameters' dtype.
  std::function<at::Tensor(at::Generator& batches)> loss;
};

// Makes a model with weights from the default generator.
[[nodiscard]] BenchModel make_bench_model(std::string_view name, const ModelSize& size);

// Returns the generator of one rank's batches, seeded with the rank.
[[nodiscard]] at::Generator batches_of_rank(int rank);

}  // namespace lockstep::bench
