#include "train/mesh_strategy.h"

#include "base/check.h"
#include "train/local_strategy.h"
#include "train/micro_batches.h"
#include "train/option_table.h"

#include <lockstep/global/tensor.h>
#include <lockstep/models/generate.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/model_plans.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/parallel/pipeline/sequences.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

// Ranks of tensor and context parallelism around copies and shards of a model, and owners of its
// experts.
class MeshStrategy : public LocalStrategy {
 public:
  MeshStrategy(const Options& options, Task& task, Group world, Mesh mesh)
      : LocalStrategy(options, task, std::move(world)), mesh_(std::move(mesh)) {
    learners_ = learners_of(mesh_, options).group();
  }

  Handle& handle() override {
    if (experts_) return *experts_;
    return context_ ? *context_ : handle_;
  }
  const Group& learners() const override { return learners_; }
  // What goes over the axes' groups is not counted.
  std::vector<std::pair<std::string, std::string>> results() override { return {}; }

 protected:
  Batch cut(Batch batch) const override {
    for (at::Tensor* part : {&batch.data, &batch.target}) {
      if (context_) *part = context_->cut(*part);
      if (experts_) *part = experts_->cut(*part);
    }
    return batch;
  }
  void make_handle(std::shared_ptr<torch::nn::Module> module) override {
    const PartOfRun whole{.model = *module, .stage = module};
    if (trains_experts(task_, mesh_)) {
      experts_ = make_expert_handle(options_, task_, whole, mesh_);
    } else if (context_tensors_of(mesh_, options_)) {
      context_ = make_context_handle(options_, task_, whole, mesh_);
    } else {
      handle_ = make_handle_on(options_, task_, whole, mesh_);
    }
  }

  Mesh mesh_;

 private:
  Group learners_;  // of one rank where no axis divides the rows
  std::optional<ContextParallel> context_;
  std::optional<ExpertParallel> experts_;
};

class PipelineStrategy final : public MeshStrategy {
 public:
  using MeshStrategy::MeshStrategy;

  Handle& handle() override { return pipeline_; }
  int draws() const override {
    return learners().rank() * mesh_.size("pp") + mesh_.coordinate("pp");
  }
  bool cuts_batches() const override { return true; }

  double backward(const Batch& part, double share, optim::GradScaler& scaler) override {
    check(share == 1, "a pipeline takes a batch whole");
    scale_ = scaler.enabled() ? scaler.state().scale : 1;
    const Batch batch = cast_batch(part, options_.sharding.compute_dtype);
    return pipeline_.step({batch.data}, {batch.target}).item<double>() / scale_;
  }

  // Of outputs, whose rows need not be those of micro-batches.
  Totals measure(const Batch& batch) override {
    at::NoGradGuard no_grad;
    const std::int64_t rows = batch.data.size(0);
    const Tensors outputs = pipeline_.forward({enough_rows(batch.data)});
    const double weight = task_.weight_of(batch);
    double loss = 0;
    if (!outputs.empty()) {
      Tensors own;
      for (const at::Tensor& output : outputs) own.push_back(output.narrow(0, 0, rows));
      loss = loss_of(own, {batch.target}).item<double>();
    }
    at::Tensor sum = at::tensor({loss}, at::kDouble);
    mesh_["pp"].all_reduce(sum, Op::sum, {.tag = "loss of an evaluation"}).wait();
    return {.loss = sum.item<double>() * weight, .targets = weight};
  }

  std::string sample(std::int64_t length) override {
    return task_.sample_by(length, [this](const at::Tensor& ids, std::int64_t count,
                                          const models::GenerateOptions& how) {
      return models::generate_tokens(*module_, ids, count, ids.size(1), how,
                                     [this](const at::Tensor& seen) { return next_logits(seen); });
    });
  }

 private:
  // At least one for each micro-batch; the first ones are the given ones.
  [[nodiscard]] at::Tensor enough_rows(at::Tensor rows) const {
    while (rows.size(0) < options_.accumulate) rows = at::cat({rows, rows});
    return rows;
  }

  // Of the token behind one row, from the last stage to all ranks.
  [[nodiscard]] at::Tensor next_logits(const at::Tensor& ids) {
    const Tensors outputs = pipeline_.forward({enough_rows(ids)});
    const PipelineLoss last_row = [](const Tensors& all, const Tensors&) {
      const at::Tensor logits = is_global(all[0]) ? full_tensor(all[0]) : all[0];
      return logits.narrow(0, 0, 1).select(1, -1).to(at::kDouble);
    };
    std::int64_t tokens = 0;
    at::Tensor logits;
    if (!outputs.empty()) {
      logits = (sequences_ ? sequences_->loss(last_row) : last_row)(outputs, {}).contiguous();
      tokens = logits.size(1);
    }
    at::Tensor size = at::tensor({tokens}, at::kLong);
    Group stages = mesh_["pp"];
    stages.all_reduce(size, Op::sum, {.tag = "tokens of a sample"}).wait();
    if (!logits.defined()) logits = at::zeros({1, size.item<std::int64_t>()}, at::kDouble);
    stages.all_reduce(logits, Op::sum, {.tag = "logits of a sample"}).wait();
    return logits;
  }

  void make_handle(std::shared_ptr<torch::nn::Module> module) override {
    module_ = std::move(module);
    const std::vector<ModelPiece> pieces = task_.pieces();
    check_input(!pieces.empty(), "--mesh {}: the task {} has no pieces for stages (Task::pieces())",
                mesh_text(options_.mesh), task_.name());
    std::map<std::string, int> uses;
    for (const ModelPiece& piece : pieces)
      for (const std::string& name : piece.modules)
        if (++uses[name] == 2) tied_.push_back(name);
    const bool has_two = options_.pipeline == "interleaved" || options_.pipeline == "zbv" ||
                         options_.pipeline == "dualpipev";
    const int count = mesh_.size("pp") * (has_two ? 2 : 1);
    const auto blocks = static_cast<int>(pieces.size()) - 2;
    check_input(blocks >= count,
                "--mesh {}: {} stages of --pipeline {} need as many blocks, found {}",
                mesh_text(options_.mesh), count, options_.pipeline, blocks);
    std::vector<Stage> stages = split(*module_, pieces, even_points(pieces, count));
    if (const auto tensors = context_tensors_of(mesh_, options_)) sequences_.emplace(*tensors);
    if (sequences_) stages = sequences_->stages(std::move(stages));
    const plan::Schedule schedule = schedule_of(count);
    PipelineOptions how{.all_ranks = mesh_.group()};
    if (mesh_.axes().size() > 1)
      how.strategy = [this](torch::nn::Module& stage) {
        const std::shared_ptr<torch::nn::Module> unowned = ModuleRef(stage).shared("train");
        return make_handle_on(
            options_, task_, {.model = *module_, .stage = unowned, .is_stage = true, .tied = tied_},
            mesh_);
      };
    pipeline_ = Pipeline(
        stages, schedule, mesh_["pp"],
        [this](const Tensors& outputs, const Tensors& targets) {
          at::Tensor loss = loss_of(outputs, targets);
          if (options_.sharding.compute_dtype) loss = loss.to(at::kFloat);
          return scale_ == 1 ? loss : loss * scale_;
        },
        how);
  }

  [[nodiscard]] at::Tensor loss_of(const Tensors& outputs, const Tensors& targets) const {
    const PipelineLoss loss = [this](const Tensors& all, const Tensors& their_targets) {
      return task_.pipeline_loss(all, their_targets);
    };
    return sequences_ ? sequences_->loss(loss)(outputs, targets) : loss(outputs, targets);
  }

  [[nodiscard]] plan::Schedule schedule_of(int stages) const {
    try {
      return plan::make_schedule(options_.pipeline,
                                 {.stages = stages, .micro_batches = options_.accumulate});
    } catch (const InvalidArgument& error) {
      throw BadInput(formatted("--pipeline {} with --accumulate {} micro-batches on --mesh {}: {}",
                               options_.pipeline, options_.accumulate, mesh_text(options_.mesh),
                               error.what()));
    }
  }

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<std::string> tied_;  // modules of several pieces
  std::optional<CutSequences> sequences_;
  Pipeline pipeline_;
  double scale_ = 1;
};

}  // namespace

std::unique_ptr<RunStrategy> make_mesh_strategy(const Options& options, Task& task,
                                                const Group& world) {
  const Division division = division_of(options, world.size());
  Mesh mesh(world, division.axes);
  if (division.stages > 1)
    return std::make_unique<PipelineStrategy>(options, task, world, std::move(mesh));
  return std::make_unique<MeshStrategy>(options, task, world, std::move(mesh));
}

}  // namespace lockstep::train
