// The two models of the benchmarks, models::Mlp and models::Gpt with batches of random numbers;
// bench/peers/models.py is their twin, number for number.
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

namespace lockstep::apps {

// "mlp", "gpt".
[[nodiscard]] std::span<const std::string_view> model_names();

struct ModelSize {
  std::int64_t width = 0;
  std::int64_t depth = 0;  // layers of mlp, blocks of gpt
  std::int64_t rows = 0;   // of a batch; 0: 32 of mlp, 8 of gpt
};
inline constexpr std::int64_t gpt_heads = 6;

// mlp 2048 x 4, gpt 384 x 6.
[[nodiscard]] ModelSize usual_size(std::string_view model);
// UsageError for a width that gpt's heads do not divide.
void check_size(std::string_view model, const ModelSize& size);

struct BenchModel {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<std::string> units;  // patterns of what fully_shard() gathers together
  TensorPlan plan;                 // how tensor parallelism cuts it
  // The loss of a batch that is drawn from the generator, in the parameters' dtype.
  std::function<at::Tensor(at::Generator& batches)> loss;
};

// Weights come from the default generator.
[[nodiscard]] BenchModel make_bench_model(std::string_view name, const ModelSize& size);

// The generator of one rank's batches, seeded by its number.
[[nodiscard]] at::Generator batches_of_rank(int rank);

}  // namespace lockstep::apps
