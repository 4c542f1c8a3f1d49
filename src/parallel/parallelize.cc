#include <lockstep/parallel/parallelize.h>

#include "base/check.h"
#include "module/rank_check.h"
#include "module/tensors.h"
#include "parallel/parallel_model.h"
#include "parallel/sharded/checks.h"
#include "parallel/tensor/resolve.h"
#include "parallel/tensor/tensor_state.h"
#include "parallel/whole_parameters.h"

#include <lockstep/models/mixture.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/tensor/expert_parallel.h>
#include <lockstep/parallel/tensor/tensor_parallel.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 6> known_axes = {"pp", "dp", "ep", "cp", "fsdp", "tp"};

// A model, a mesh and a plan that fit together, and how to train the model or a stage of it.
class Composition {
 public:
  // Collective. All checks of parallelize(); changes nothing.
  Composition(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh, ParallelPlan plan,
              ParallelOptions options);

  [[nodiscard]] int size(const char* axis) const { return mesh_.size(axis); }
  [[nodiscard]] bool has(const char* axis) const { return size(axis) > 1; }
  // What tp, cp, ep, dp and fsdp make of `part`, the model or a stage of it.
  [[nodiscard]] Handle train(std::shared_ptr<torch::nn::Module> part) const;
  // The stages in a pipeline, and the model without one.
  [[nodiscard]] ParallelModel pipelined(std::shared_ptr<ParallelModelParts> parts) const;
  [[nodiscard]] ParallelModel whole(std::shared_ptr<ParallelModelParts> parts) const;
  [[nodiscard]] std::shared_ptr<ParallelModelParts> parts() const;

 private:
  [[nodiscard]] std::vector<std::string> lines() const;
  void check_plan() const;
  void check_tensors() const;
  void check_context() const;
  void check_experts() const;
  void check_model() const;
  void cut_stages();
  void make_meshes();
  // Copies and shards of what is left of a part on `ranks`.
  [[nodiscard]] Handle copies(std::shared_ptr<torch::nn::Module> part, const Mesh& ranks) const;
  [[nodiscard]] Handle experts(const std::shared_ptr<torch::nn::Module>& part) const;
  [[nodiscard]] std::string text() const;

  std::shared_ptr<torch::nn::Module> model_;
  const Mesh mesh_;
  ParallelPlan plan_;
  ParallelOptions options_;
  std::map<std::string, const models::MixtureImpl*> mixtures_;  // by name
  std::vector<Stage> stages_;
  std::optional<plan::Schedule> schedule_;
  // The first use of a sub-mesh is collective over the mesh, so all ranks make them at the same
  // place: stages may differ in what they need.
  std::optional<Mesh> rows_;     // dp, cp, fsdp: ranks that have the same parts of tp
  std::optional<Mesh> all_;      // these and tp
  std::optional<Mesh> experts_;  // these and ep
  std::optional<Mesh> tensors_;  // with cp: tp and cp
  std::optional<Mesh> data_;     // dp, ep, fsdp
};

void check_axes(const Mesh& mesh) {
  for (const MeshAxis& axis : mesh.axes())
    check(std::ranges::find(known_axes, axis.name) != known_axes.end(),
          "parallelize: axis \"{}\": known axes are {}", axis.name, listed(known_axes, ", "));
}

std::shared_ptr<torch::nn::Module> unowned(torch::nn::Module& module) {
  return {std::shared_ptr<void>(), &module};
}

// Modules that several pieces name: weights that are tied over stages, which both divide alike.
std::vector<std::string> tied_modules(const torch::nn::Module& model,
                                      const std::vector<ModelPiece>& pieces) {
  std::map<std::string, int> uses;
  for (const ModelPiece& piece : pieces)
    for (const std::string& name : piece.modules) ++uses[name];
  std::vector<std::string> tied;
  for (const auto& module : model.named_modules(std::string(), /*include_self=*/false))
    if (const auto found = uses.find(module.key()); found != uses.end() && found->second > 1)
      tied.push_back(module.key());
  return tied;
}

Composition::Composition(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh,
                         ParallelPlan plan, ParallelOptions options)
    : model_(std::move(model)), mesh_(mesh), plan_(std::move(plan)), options_(std::move(options)) {
  check(model_ != nullptr, "parallelize: expected a model, found none");
  check_axes(mesh_);
  if (!options_.tensor.empty()) plan_.tensor = options_.tensor;
  if (options_.shard.units.empty()) {
    options_.shard.units.assign(plan_.blocks.begin(), plan_.blocks.end());
    for (const std::string& name : tied_modules(*model_, plan_.pieces))
      options_.shard.units.emplace_back(name);
  }
  // A module that no shared_ptr owns cannot be listed by named_modules().
  if (const auto* mixture = model_->as<models::MixtureImpl>()) mixtures_.emplace("", mixture);
  for (const auto& module : model_->named_modules(std::string(), /*include_self=*/false))
    if (const auto* mixture = module.value()->as<models::MixtureImpl>())
      mixtures_.emplace(module.key(), mixture);
  modules::check_same_lines(mesh_.group(), lines(), {.tag = "parallelize"});
  check_plan();
  check_model();
  cut_stages();
  make_meshes();
}

// What ranks must agree on.
std::vector<std::string> Composition::lines() const {
  const modules::ModuleTensors tensors = modules::tensors_of(*model_);
  std::vector<std::string> lines = sharded::describe(*model_, tensors, options_.shard);
  lines.push_back(formatted("micro_batches = {}", options_.micro_batches));
  lines.push_back(formatted("schedule {}, {} stages per rank", options_.pipeline.schedule,
                            options_.pipeline.stages_per_rank));
  lines.push_back(formatted("sequence_parallel = {}, sequence_dim = {}, {}, {}",
                            options_.sequence_parallel, options_.sequence_dim,
                            options_.context == ContextMethod::ring ? "ring" : "ulysses",
                            options_.balance == ContextBalance::zigzag ? "zigzag" : "contiguous"));
  for (const std::string& pattern : options_.activation_checkpointing)
    lines.push_back(
        formatted("activation_checkpointing {}, every {}", pattern, options_.checkpoint_every));
  lines.push_back(formatted("bucket_bytes = {}, find_unused_parameters = {}",
                            options_.data.bucket_bytes, options_.data.find_unused_parameters));
  for (const auto& [pattern, style] : plan_.tensor)
    lines.push_back(formatted("tensor plan {}: {}", pattern, describe(style)));
  for (const ModelPiece& piece : plan_.pieces)
    lines.push_back(formatted("piece {}: {}", piece.name, listed(piece.modules, ", ")));
  lines.push_back(formatted("heads = {}", plan_.heads));
  return lines;
}

void Composition::check_plan() const {
  check(options_.micro_batches >= 1, "parallelize: expected micro_batches of at least 1, found {}",
        options_.micro_batches);
  check(options_.checkpoint_every >= 1,
        "parallelize: expected checkpoint_every of at least 1, found {}",
        options_.checkpoint_every);
  check(!has("tp") || !plan_.tensor.empty(),
        "parallelize: axis tp={} needs a tensor plan: give .tensor, or parallel_plan(const Net&)",
        size("tp"));
  check(!has("pp") || !plan_.pieces.empty(),
        "parallelize: axis pp={} needs .pieces: give them in parallel_plan(const Net&)",
        size("pp"));
  check_tensors();
  check_context();
  check_experts();
  (void)stage_units(options_.shard.units, *model_, *model_);
}

void Composition::check_tensors() const {
  if (has("tp")) (void)tensor_parallel::planned(plan_.tensor, *model_, size("tp"));
  check(!options_.sequence_parallel || !has("tp") ||
            (options_.sequence_dim >= 0 && options_.sequence_dim <= 1),
        "parallelize: expected sequence_dim 0 or 1, found {}", options_.sequence_dim);
}

void Composition::check_context() const {
  if (!has("cp")) return;
  check(plan_.heads > 0,
        "parallelize: axis cp={} needs a model of sequences: give .heads in parallel_plan(const "
        "Net&)",
        size("cp"));
  check(options_.sequence_dim >= 0, "parallelize: expected a sequence_dim of at least 0, found {}",
        options_.sequence_dim);
  const int ranks = size("cp") * size("tp");
  check(options_.context == ContextMethod::ring || plan_.heads % ranks == 0,
        "parallelize: context ulysses: expected heads of keys that {} ranks of cp and tp divide, "
        "found {}; ring takes any",
        ranks, plan_.heads);
}

void Composition::check_experts() const {
  if (!has("ep")) return;
  check(!mixtures_.empty(),
        "parallelize: axis ep={} needs a model with mixtures of experts (models::Mixture), found "
        "none",
        size("ep"));
  for (const auto& [name, mixture] : mixtures_)
    check(mixture->options().experts % size("ep") == 0,
          "parallelize: {}: expected experts that {} ranks divide, found {}", name, size("ep"),
          mixture->options().experts);
}

// What the strategies would find when activation checkpointing has marked the model.
void Composition::check_model() const {
  const modules::ModuleTensors tensors =
      modules::tensors_of(*model_, has("fsdp") ? options_.shard.ignored : options_.data.ignored);
  modules::check_ordinary(tensors, "parallelize");
  parallel::check_not_sharded(tensors.parameters, "parallelize");
  if (has("fsdp") || has("tp") || has("cp") || (!mixtures_.empty() && mesh_.group().size() > 1))
    modules::check_alone(tensors, "parallelize");
}

// On every mesh, so that pieces that do not fit the model are found on one rank, too.
void Composition::cut_stages() {
  if (plan_.pieces.empty()) return;
  const auto& [name, given_count] = options_.pipeline;
  const int each = given_count == 0 ? plan::stages_per_rank(name) : given_count;
  if (!has("pp")) {
    stages_ = split(*model_, plan_.pieces, {});
    return;
  }
  const int count = size("pp") * each;
  schedule_ = plan::make_schedule(
      name, {.stages = count, .chunks = each, .micro_batches = options_.micro_batches});
  stages_ = split(*model_, plan_.pieces, even_points(plan_.pieces, count));
}

void Composition::make_meshes() {
  data_ = mesh_.sub_mesh({"dp", "ep", "fsdp"});
  rows_ = mesh_.sub_mesh({"dp", "cp", "fsdp"});
  all_ = mesh_.sub_mesh({"dp", "cp", "fsdp", "tp"});
  experts_ = mesh_.sub_mesh({"dp", "ep", "cp", "fsdp", "tp"});
  if (!has("cp")) return;
  // With sequence_parallel a rank's part of a sequence is cut once more.
  tensors_ = mesh_.sub_mesh(options_.sequence_parallel ? std::vector<std::string>{"cp", "tp"}
                                                       : std::vector<std::string>{"tp", "cp"});
}

Handle Composition::copies(std::shared_ptr<torch::nn::Module> part, const Mesh& ranks) const {
  if (!has("fsdp")) return DistributedDataParallel(std::move(part), ranks, options_.data);
  ShardOptions shard = options_.shard;
  shard.units = stage_units(shard.units, *model_, *part);
  return fully_shard(std::move(part), ranks, shard);
}

// Without ep, too: copies count the tokens of all ranks' rows, as one process does.
Handle Composition::experts(const std::shared_ptr<torch::nn::Module>& part) const {
  return expert_parallel(
      part, *experts_,
      {.strategy = [this](torch::nn::Module& parts,
                          const Mesh& ranks) { return copies(unowned(parts), ranks); },
       .plan = has("tp") ? stage_plan(plan_.tensor, *model_, *part) : TensorPlan(),
       .sequence_parallel = options_.sequence_parallel && has("tp"),
       .method = options_.context,
       .balance = options_.balance,
       .sequence_dim = options_.sequence_dim,
       .is_stage = true,
       .tensors = tensors_});
}

Handle Composition::train(std::shared_ptr<torch::nn::Module> part) const {
  if (!mixtures_.empty() && experts_->group().size() > 1) return experts(part);
  const auto of_parts = [this](torch::nn::Module& parts) { return copies(unowned(parts), *rows_); };
  const TensorPlan plan = has("tp") ? stage_plan(plan_.tensor, *model_, *part) : TensorPlan();
  const bool sequence_parallel = options_.sequence_parallel && has("tp");
  if (has("cp"))
    return context_parallel(std::move(part), *tensors_,
                            {.method = options_.context,
                             .balance = options_.balance,
                             .sequence_dim = options_.sequence_dim,
                             .plan = plan,
                             .sequence_parallel = sequence_parallel,
                             .strategy = of_parts,
                             .mesh = all_});
  if (!has("tp")) return copies(std::move(part), *rows_);
  TensorParallelOptions how{.sequence_parallel = sequence_parallel,
                            .sequence_dim = options_.sequence_dim};
  if (rows_->group().size() > 1) {
    how.strategy = of_parts;
    how.mesh = all_;
  }
  // A stage may have no parameter that the plan names: it is replicated.
  return TensorParallel(std::make_shared<TensorParallelState>(
      std::move(part), mesh_.sub_mesh({"tp"}), plan, std::move(how)));
}

std::string Composition::text() const {
  std::string text =
      formatted("parallelize on {} ({} ranks)\n", mesh_.layout().describe(), mesh_.group().size());
  for (std::size_t i = 0; has("pp") && i < stages_.size(); ++i)
    text += formatted("stage {} on rank {} of pp: {}\n", i, plan::rank_of_stages(*schedule_)[i],
                      stages_[i].name);
  if (has("tp")) text += describe(plan_.tensor, *model_, size("tp"), options_.sequence_parallel);
  if (has("cp"))
    text += formatted("sequences: parts on {} ranks of cp, {}\n", size("cp"),
                      options_.context == ContextMethod::ring ? "ring" : "ulysses");
  for (const auto& [name, mixture] : mixtures_)
    if (has("ep"))
      text += formatted("experts: {}: {} on each of {} ranks of ep\n", name,
                        mixture->options().experts / size("ep"), size("ep"));
  if (has("fsdp")) {
    std::vector<std::string> units;
    for (const UnitRule& rule : options_.shard.units) units.push_back(rule.pattern);
    text += formatted("shards: on {} ranks of fsdp, units {}\n", size("fsdp"),
                      units.empty() ? "(one)" : listed(units, ", "));
  }
  if (has("dp")) text += formatted("copies: {}\n", size("dp"));
  return text;
}

std::shared_ptr<ParallelModelParts> Composition::parts() const {
  auto parts = std::make_shared<ParallelModelParts>(
      ParallelModelParts{.mesh = mesh_,
                         .data = data_->group(),
                         .stages = mesh_["pp"],
                         .stage_place = mesh_.coordinate("pp"),
                         .micro_batches = options_.micro_batches,
                         .plan_loss = plan_.loss,
                         .step_loss = std::make_shared<PipelineLoss>(),
                         .whole = std::nullopt,
                         .sequences = std::nullopt,
                         .checkpoints = std::nullopt,
                         .plan = text()});
  if (!options_.activation_checkpointing.empty())
    parts->checkpoints = checkpoint_activations(*model_, options_.activation_checkpointing,
                                                {.every = options_.checkpoint_every});
  if (has("cp"))
    parts->sequences.emplace(
        *tensors_, CutSequencesOptions{.zigzag = options_.balance == ContextBalance::zigzag,
                                       .sequence_dim = options_.sequence_dim});
  return parts;
}

ParallelModel Composition::pipelined(std::shared_ptr<ParallelModelParts> parts) const {
  const auto& sequences = parts->sequences;
  PipelineLoss loss = [step_loss = parts->step_loss](const Tensors& outputs,
                                                     const Tensors& targets) {
    return (*step_loss)(outputs, targets);
  };
  PipelineOptions how{.all_ranks = mesh_.group()};
  if (mesh_.group().size() > size("pp"))
    how.strategy = [this](torch::nn::Module& stage) { return train(unowned(stage)); };
  Pipeline pipeline(sequences ? sequences->stages(stages_) : stages_, *schedule_, mesh_["pp"],
                    sequences ? sequences->loss(loss) : loss, how);
  return ParallelModel(std::move(pipeline), std::move(parts));
}

ParallelModel Composition::whole(std::shared_ptr<ParallelModelParts> parts) const {
  StageForward forward = stages_.empty() ? plan_.forward : stages_.front().forward;
  if (!forward)
    forward = [](const Tensors& /*inputs*/) -> Tensors {
      throw InvalidArgument(
          "step(): the model has no single forward() of tensors: expected .pieces or .forward in "
          "parallel_plan(const Net&), found none");
    };
  parts->whole.emplace(Stage{"model", model_, std::move(forward)});
  return ParallelModel(train(model_), std::move(parts));
}

}  // namespace

ParallelModel parallelize(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh,
                          ParallelPlan plan, ParallelOptions options) {
  const Composition composition(std::move(model), mesh, std::move(plan), std::move(options));
  std::shared_ptr<ParallelModelParts> parts = composition.parts();
  if (composition.has("pp")) return composition.pipelined(std::move(parts));
  return composition.whole(std::move(parts));
}

}  // namespace lockstep
