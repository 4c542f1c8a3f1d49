// A GPT on a mesh of any of the axes pp, dp, fsdp, tp and cp, and the same on one process.
#pragma once

#include <lockstep/mesh/mesh.h>
#include <lockstep/module/checkpoint_activations.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/pipeline/language_models.h>
#include <lockstep/parallel/pipeline/sequences.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/tensor/context_parallel.h>
#include <lockstep/parallel/tensor/parallelize.h>
#include <lockstep/plan/schedule.h>

#include "parallel/tensor/support.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

struct Composition {
  std::vector<MeshAxis> axes;
  std::string schedule = "1f1b";
  bool sequence = false;
  bool checkpoints = false;  // activations of blocks
  ShardLevel level = ShardLevel::full;
  int micro_batches = 4;
  bool buckets = true;
  ContextMethod context = ContextMethod::ring;
};

inline std::string text_of(const Composition& what) {
  std::string text;
  for (const MeshAxis& axis : what.axes)
    text += (text.empty() ? "" : " x ") + axis.name + std::to_string(axis.size);
  const bool piped = std::ranges::any_of(what.axes, [](auto& one) { return one.name == "pp"; });
  if (piped) text += ", " + what.schedule;
  if (what.sequence) text += ", sequence parallel";
  if (what.context == ContextMethod::ulysses) text += ", ulysses";
  if (what.checkpoints) text += ", activations checkpointed";
  return text;
}

inline int ranks_of(const Composition& what) {
  int ranks = 1;
  for (const MeshAxis& axis : what.axes) ranks *= axis.size;
  return ranks;
}

// One of them, on the ranks of a group.
template <typename Model>
class Composed {
 public:
  Composed(Model model, TensorPlan plan, std::vector<UnitRule> units, Group world, Composition how)
      : model_(std::move(model)),
        plan_(std::move(plan)),
        units_(std::move(units)),
        how_(std::move(how)),
        mesh_(std::move(world), how_.axes) {
    for (const char* name : {"dp", "fsdp"})
      if (has(name)) data_axes_.push_back(name);
    if (!data_axes_.empty()) data_ = mesh_.sub_mesh(data_axes_);
    if (has("cp")) find_context();
    if (has("pp")) {
      make_pipeline();
    } else {
      if (how_.checkpoints) checkpoints_ = checkpoint_activations(*model_, units_.front().pattern);
      if (has("cp"))
        context_.emplace(context_strategy(*model_));
      else
        handle_ = strategy(*model_);
    }
  }

  [[nodiscard]] Handle& handle() { return context_ ? *context_ : handle_; }
  [[nodiscard]] Model& model() { return model_; }
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  [[nodiscard]] const std::optional<ActivationCheckpoints>& checkpoints() const {
    return checkpoints_;
  }

  // Forward and backward of the whole batch, of which each data rank takes its rows; the loss of
  // all.
  double step(const at::Tensor& ids, const at::Tensor& targets) {
    const int copies = data_ ? data_->group().size() : 1, own = data_ ? data_->group().rank() : 0;
    const std::int64_t rows = ids.size(0) / copies;
    const at::Tensor x = ids.narrow(0, own * rows, rows), y = targets.narrow(0, own * rows, rows);
    at::Tensor loss;
    if (pipeline_) {
      loss = pipeline_->step({x}, {y});
    } else {
      loss = context_ ? model_->loss(context_->cut(x), context_->cut(y)) : model_->loss(x, y);
      loss.backward();
    }
    at::Tensor all = at::full({1}, number_of(loss), at::kDouble);
    if (data_) Group(data_->group()).all_reduce(all, Op::average).wait();
    return all.item<double>();
  }

  [[nodiscard]] bool has(const std::string& name) const {
    return std::ranges::any_of(how_.axes, [&](auto& one) { return one.name == name; });
  }

 private:
  Handle outer(torch::nn::Module& part, const Mesh& ranks) {
    if (!has("fsdp"))
      return DistributedDataParallel(part, ranks, {.bucket_bytes = how_.buckets ? 20000 : 1 << 25});
    return fully_shard(part, ranks,
                       {.units = stage_units(units_, *model_, part), .level = how_.level});
  }

  // The ranks that add gradients up are those of cp besides.
  void find_context() {
    std::vector<std::string> axes = data_axes_, tensors = {"cp"};
    axes.insert(axes.end() - (has("fsdp") ? 1 : 0), "cp");
    averaging_ = mesh_.sub_mesh(axes);
    if (has("tp")) tensors.insert(tensors.begin(), "tp");
    tensors_ = mesh_.sub_mesh(tensors);
    if (has("tp")) axes.emplace_back("tp");
    of_stage_ = mesh_.sub_mesh(axes);
  }

  ContextParallel context_strategy(torch::nn::Module& part) {
    ContextParallelOptions options{.method = how_.context};
    if (has("tp")) options.plan = stage_plan(plan_, *model_, part);
    options.strategy = [this](torch::nn::Module& parts) { return outer(parts, *averaging_); };
    options.mesh = of_stage_;
    return context_parallel(part, *tensors_, options);
  }

  // Tensor and context parallelism inside, data parallelism outside.
  Handle strategy(torch::nn::Module& part) {
    if (has("cp")) return context_strategy(part);
    if (!has("tp")) return outer(part, *data_);
    TensorParallelOptions options{.sequence_parallel = how_.sequence};
    if (data_) {
      options.strategy = [this](torch::nn::Module& parts) { return outer(parts, *data_); };
      auto axes = data_axes_;
      axes.push_back("tp");
      options.mesh = mesh_.sub_mesh(axes);
    }
    return parallelize(part, mesh_["tp"], stage_plan(plan_, *model_, part), options);
  }

  void make_pipeline() {
    const auto pieces = pieces_of(model_);
    const int ranks = mesh_.size("pp");
    const bool two =
        how_.schedule == "interleaved" || how_.schedule == "zbv" || how_.schedule == "dualpipev";
    auto stages = split(*model_, pieces, even_points(pieces, two ? 2 * ranks : ranks));
    PipelineLoss loss = token_loss;
    if (tensors_) {
      const CutSequences sequences(*tensors_);
      stages = sequences.stages(stages);
      loss = sequences.loss(loss);
    }
    if (how_.checkpoints) checkpoints_ = checkpoint_activations(*model_, units_.front().pattern);
    const auto schedule =
        plan::make_schedule(how_.schedule, {.stages = static_cast<int>(stages.size()),
                                            .chunks = two ? 2 : 0,
                                            .micro_batches = how_.micro_batches});
    PipelineOptions options{.all_ranks = mesh_.group()};
    if (how_.axes.size() > 1)
      options.strategy = [this](torch::nn::Module& stage) { return strategy(stage); };
    Pipeline pipeline(stages, schedule, mesh_["pp"], loss, options);
    pipeline_ = std::make_unique<Pipeline>(std::move(pipeline));
  }

 public:
  [[nodiscard]] Handle& all() { return pipeline_ ? static_cast<Handle&>(*pipeline_) : handle(); }

 private:
  Model model_;
  TensorPlan plan_;
  std::vector<UnitRule> units_;
  Composition how_;
  Mesh mesh_;
  std::vector<std::string> data_axes_;
  std::optional<Mesh> data_;
  std::optional<Mesh> averaging_, tensors_, of_stage_;  // with cp
  std::optional<ActivationCheckpoints> checkpoints_;
  Handle handle_;
  std::optional<ContextParallel> context_;
  std::unique_ptr<Pipeline> pipeline_;
};

using ComposedGpt = Composed<models::Gpt>;

inline models::GptOptions composed_gpt() {
  models::GptOptions options = small_gpt(4);
  options.heads = 4;
  options.width = 40;
  return options;
}

inline ComposedGpt composed(Group world, const Composition& how, at::ScalarType dtype) {
  return ComposedGpt(made_alike([] { return models::Gpt(composed_gpt()); }, dtype),
                     gpt_tensor_plan(composed_gpt()), {"transformer.h.*", "transformer.wte"},
                     std::move(world), how);
}

// What one of them has to be.
inline std::vector<double> losses_of_one(
    at::ScalarType dtype, int steps,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>&
        optimizer_for) {
  auto model = made_alike([] { return models::Gpt(composed_gpt()); }, dtype);
  const auto optimizer = optimizer_for(model->parameters());
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const TokenBatch batch(step % 7, 8);
    optimizer->zero_grad();
    const at::Tensor loss = model->loss(batch.ids, batch.targets);
    loss.backward();
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

}  // namespace lockstep::test
