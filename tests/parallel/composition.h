// A GPT, or one with mixtures of experts, on a mesh of any of the axes pp, dp, fsdp, tp, cp and ep,
// and the same on one process.
#pragma once

#include <lockstep/mesh/mesh.h>
#include <lockstep/models/moe.h>
#include <lockstep/module/checkpoint_activations.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/pipeline/language_models.h>
#include <lockstep/parallel/pipeline/sequences.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/tensor/context_parallel.h>
#include <lockstep/parallel/tensor/expert_parallel.h>
#include <lockstep/parallel/tensor/parallelize.h>
#include <lockstep/plan/schedule.h>

#include "parallel/parity_optimizer.h"
#include "parallel/tensor/support.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <initializer_list>
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
  // Called before each forward of a stage, or of the model; null: nothing.
  std::function<void()> before_forward = {};
};

inline std::string text_of(const Composition& what) {
  std::string text;
  for (const MeshAxis& axis : what.axes)
    text += (text.empty() ? "" : " x ") + axis.name + std::to_string(axis.size);
  const bool piped = std::ranges::any_of(what.axes, [](auto& one) { return one.name == "pp"; });
  if (piped) text += ", " + what.schedule;
  if (what.sequence) text += ", sequence parallel";
  if (what.level == ShardLevel::optimizer) text += ", optimizer shards";
  if (what.level == ShardLevel::gradients) text += ", gradient shards";
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
    data_axes_ = among({"dp", "ep", "fsdp"});
    if (!data_axes_.empty()) data_ = mesh_.sub_mesh(data_axes_);
    if (has("cp")) find_context();
    if (has("ep")) of_stage_ = mesh_.sub_mesh(among({"dp", "ep", "cp", "fsdp", "tp"}));
    if (has("pp")) {
      make_pipeline();
    } else {
      if (how_.checkpoints) checkpoints_ = checkpoint_activations(*model_, units_.front().pattern);
      if (has("ep"))
        experts_.emplace(expert_strategy(*model_));
      else if (has("cp"))
        context_.emplace(context_strategy(*model_));
      else
        handle_ = strategy(*model_);
    }
  }

  [[nodiscard]] Handle& handle() {
    if (experts_) return *experts_;
    return context_ ? *context_ : handle_;
  }
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
    if (pipeline_) return number_of(pipeline_->step({x}, {y}));
    if (how_.before_forward) how_.before_forward();
    loss = model_->loss(cut(x), cut(y));
    loss.backward();
    at::Tensor all = at::full({1}, number_of(loss), at::kDouble);
    if (data_) Group(data_->group()).all_reduce(all, Op::average).wait();
    return all.item<double>();
  }

  [[nodiscard]] bool has(const std::string& name) const {
    return std::ranges::any_of(how_.axes, [&](auto& one) { return one.name == name; });
  }

 private:
  [[nodiscard]] std::vector<std::string> among(std::initializer_list<const char*> names) const {
    std::vector<std::string> found;
    for (const char* name : names)
      if (has(name)) found.emplace_back(name);
    return found;
  }

  [[nodiscard]] at::Tensor cut(const at::Tensor& batch) const {
    if (experts_) return experts_->cut(batch);
    return context_ ? context_->cut(batch) : batch;
  }

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

  ExpertParallel expert_strategy(torch::nn::Module& part) {
    ExpertParallelOptions options{
        .strategy = [this](torch::nn::Module& parts,
                           const Mesh& ranks) { return outer(parts, ranks); },
        .sequence_parallel = how_.sequence,
        .method = how_.context,
        .is_stage = has("pp"),
        .tensors = tensors_};
    if (has("tp")) options.plan = stage_plan(plan_, *model_, part);
    return expert_parallel(part, *of_stage_, options);
  }

  // Tensor, context and expert parallelism inside, data parallelism outside.
  Handle strategy(torch::nn::Module& part) {
    if (has("ep")) return expert_strategy(part);
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
    if (how_.before_forward)
      for (Stage& stage : stages)
        stage.forward = [deed = how_.before_forward,
                         inner = std::move(stage.forward)](const Tensors& inputs) {
          deed();
          return inner(inputs);
        };
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
  const Composition how_;
  Mesh mesh_;
  std::vector<std::string> data_axes_;
  std::optional<Mesh> data_;
  std::optional<Mesh> averaging_, tensors_, of_stage_;  // with cp or ep
  std::optional<ActivationCheckpoints> checkpoints_;
  Handle handle_;
  std::optional<ContextParallel> context_;
  std::optional<ExpertParallel> experts_;
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

inline models::MoeOptions composed_moe(double capacity, int every = 1) {
  models::MoeOptions options{.gpt = small_gpt(2, /*bias=*/false), .every = every};
  options.gpt.heads = 4;
  options.gpt.width = 24;
  options.mixture.experts = 4;
  options.mixture.capacity_factor = capacity;
  return options;
}

inline models::Moe moe_of(double capacity, at::ScalarType dtype, int every = 1) {
  return made_alike([&] { return models::Moe(composed_moe(capacity, every)); }, dtype);
}

inline Composed<models::Moe> composed(Group world, models::Moe model, const Composition& how) {
  const TensorPlan plan = moe_tensor_plan(model->options());
  return {std::move(model), plan, {"transformer.h.*", "transformer.wte"}, std::move(world), how};
}

// The rows of a step of which micro-batch `number` is made, of ranks that have rows of their own:
// each rank cuts what it has.
inline at::Tensor rows_of_micro_batch(const at::Tensor& rows, int learners, int micro_batches,
                                      int number) {
  const std::int64_t each = rows.size(0) / learners;
  std::vector<at::Tensor> parts;
  for (int learner = 0; learner < learners; ++learner) {
    const std::int64_t begin = each * number / micro_batches;
    const std::int64_t end = each * (number + 1) / micro_batches;
    parts.push_back(rows.narrow(0, learner * each + begin, end - begin));
  }
  return at::cat(parts);
}

constexpr std::int64_t rows_of_step = 8;

// What one of them has to be: the losses of one process that makes as many steps with all rows, in
// the same micro-batches where these matter.
template <typename Model>
std::vector<double> losses_of_one(Model model, at::ScalarType dtype, int steps, int learners = 1,
                                  int micro_batches = 1) {
  const auto optimizer = parity_optimizer(dtype, model->parameters());
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const TokenBatch batch(step % 7, rows_of_step);
    optimizer->zero_grad();
    losses.push_back(0);
    for (int i = 0; i < micro_batches; ++i) {
      const at::Tensor ids = rows_of_micro_batch(batch.ids, learners, micro_batches, i);
      const double share = static_cast<double>(ids.size(0)) / rows_of_step;
      const at::Tensor loss =
          model->loss(ids, rows_of_micro_batch(batch.targets, learners, micro_batches, i)) * share;
      loss.backward();
      losses.back() += loss.template item<double>();
    }
    optimizer->step();
  }
  return losses;
}

// The largest relative difference of a loss from the expected ones, of as many steps.
template <typename Model>
double largest_difference(Composed<Model>& composed, at::ScalarType dtype,
                          const std::vector<double>& expected) {
  const auto optimizer = parity_optimizer(dtype, composed.all().parameters());
  double largest = 0;
  for (std::size_t step = 0; step < expected.size(); ++step) {
    const TokenBatch batch(static_cast<int>(step % 7), rows_of_step);
    composed.all().zero_grad();
    const double loss = composed.step(batch.ids, batch.targets);
    optimizer->step();
    largest = std::max(largest, std::abs(loss - expected[step]) / std::abs(expected[step]));
  }
  return largest;
}

// A name for googletest.
inline std::string test_name_of(const Composition& what) {
  std::string name = text_of(what);
  for (char& letter : name)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  return name;
}

}  // namespace lockstep::test
