#include "measure/models.h"

#include "base/format.h"
#include "sys/program.h"

#include <lockstep/models/gpt.h>
#include <lockstep/models/mlp.h>
#include <lockstep/parallel/model_plans.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <array>
#include <string>

namespace lockstep::bench {
namespace {

constexpr std::array<std::string_view, 2> names{"mlp", "gpt"};
constexpr std::int64_t mlp_rows = 32, gpt_rows = 8, gpt_block = 256, gpt_vocabulary = 65;
constexpr std::uint64_t first_seed = 1234;

BenchModel make_mlp(const ModelSize& size) {
  models::Mlp mlp(models::MlpOptions{
      .sizes = std::vector(static_cast<std::size_t>(size.depth) + 1, size.width)});
  std::int64_t rows = size.rows > 0 ? size.rows : mlp_rows, width = size.width;
  auto loss = [mlp, rows, width](at::Generator& batches) mutable {
    c10::ScalarType dtype = mlp->parameters().front().scalar_type();
    at::Tensor input = at::randn({rows, width}, batches).to(dtype);
    at::Tensor target = at::randn({rows, width}, batches).to(dtype);
    return at::mse_loss(mlp->forward(input), target);
  };
  TensorPlan plan;
  for (std::int64_t layer = 0; layer < size.depth; ++layer) {
    const TensorStyle style = layer % 2 == 0 ? TensorStyle(Colwise()) : TensorStyle(Rowwise());
    plan.emplace_back("layers." + std::to_string(layer), style);
  }
  return {.module = mlp.ptr(), .units = {"layers.*"}, .plan = plan, .loss = loss};
}

BenchModel make_gpt(const ModelSize& size) {
  models::Gpt gpt(models::GptOptions{.layers = size.depth,
                                     .heads = gpt_heads,
                                     .hidden_size = size.width,
                                     .context_length = gpt_block,
                                     .vocabulary = gpt_vocabulary,
                                     .bias = true});
  std::int64_t rows = size.rows > 0 ? size.rows : gpt_rows;
  auto loss = [gpt, rows](at::Generator& batches) mutable {
    at::Tensor ids = at::randint(gpt_vocabulary, {rows, gpt_block + 1}, batches, at::kLong);
    return gpt->loss(ids.narrow(1, 0, gpt_block).contiguous(), ids.narrow(1, 1, gpt_block));
  };
  return {.module = gpt.ptr(),
          .units = {"transformer.h.*"},
          .plan = gpt_tensor_plan(gpt->options()),
          .loss = loss};
}

}  // namespace

std::span<const std::string_view> model_names() { return names; }

ModelSize usual_size(std::string_view model) {
  return model == "gpt" ? ModelSize{.width = 384, .depth = 6}
                        : ModelSize{.width = 2048, .depth = 4};
}

void check_size(std::string_view model, const ModelSize& size) {
  if (model == "gpt" && size.width % gpt_heads != 0)
    throw UsageError(
        formatted("--size: expected a width that is a multiple of gpt's {} heads, found {}",
                  gpt_heads, size.width));
}

BenchModel make_bench_model(std::string_view name, const ModelSize& size) {
  return name == "gpt" ? make_gpt(size) : make_mlp(size);
}

at::Generator batches_of_rank(int rank) {
  return at::detail::createCPUGenerator(first_seed + static_cast<std::uint64_t>(rank));
}

}  // namespace lockstep::bench
