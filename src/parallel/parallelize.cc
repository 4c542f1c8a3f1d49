#include <lockstep/parallel/parallelize.h>

#include "base/check.h"
#include "module/rank_check.h"
#include "parallel/parallel_composition.h"
#include "parallel/tensor/tensor_state.h"
#include "parallel/whole_module_state.h"

#include <lockstep/layout/name_pattern.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/tensor/expert_parallel.h>
#include <lockstep/parallel/tensor/tensor_parallel.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace lockstep {
namespace {

std::shared_ptr<torch::nn::Module> unowned(torch::nn::Module& module) {
  return ModuleRef(module).shared("parallelize");
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

// The patterns that name a tensor of `part`.
std::vector<std::string> patterns_in(const std::vector<std::string>& patterns,
                                     const torch::nn::Module& part) {
  std::vector<std::string> names;
  for (const NamedParameter& one : unique_parameters(part)) {
    names.push_back(one.name);
    names.insert(names.end(), one.aliases.begin(), one.aliases.end());
  }
  for (const auto& buffer : part.named_buffers()) names.push_back(buffer.key());
  std::vector<std::string> own;
  std::ranges::copy_if(patterns, std::back_inserter(own), [&](const std::string& pattern) {
    return std::ranges::any_of(
        names, [&](const std::string& name) { return layout::names_around(pattern, name); });
  });
  return own;
}

}  // namespace

Composition::Composition(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh,
                         ParallelPlan plan, ParallelOptions options)
    : model_(std::move(model)), mesh_(mesh), plan_(std::move(plan)), options_(std::move(options)) {
  check(model_ != nullptr, "parallelize: expected a model, found none");
  check_axes();
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
  check_storage();
}

// On every mesh, so that pieces that do not fit the model are found on one rank, too.
void Composition::cut_stages() {
  if (plan_.pieces.empty()) return;
  if (!has("pp")) {
    stages_ = split(*model_, plan_.pieces, {});
    return;
  }
  const auto& [name, given_count] = options_.pipeline;
  const int each = given_count == 0 ? plan::stages_per_rank(name) : given_count;
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
  std::vector<std::string> tensors = {"cp"};
  // With sequence_parallel a rank's part of a sequence is cut once more.
  if (has("tp")) tensors.insert(options_.sequence_parallel ? tensors.end() : tensors.begin(), "tp");
  tensors_ = mesh_.sub_mesh(tensors);
}

Handle Composition::copies(std::shared_ptr<torch::nn::Module> part, const Mesh& ranks) const {
  if (!shards()) {
    DataParallelOptions data = options_.data;
    data.ignored = patterns_in(data.ignored, *part);
    return trained(part, ranks, DistributedDataParallel(part, ranks, data));
  }
  ShardOptions shard = options_.shard;
  shard.ignored = patterns_in(shard.ignored, *part);
  shard.units = stage_units(shard.units, *model_, *part);
  return trained(part, ranks, fully_shard(part, ranks, shard));
}

// The handle itself goes where the part's handle is made of others.
Handle Composition::trained(std::shared_ptr<torch::nn::Module> part, const Mesh& ranks,
                            Handle handle) const {
  auto state = std::make_shared<parallel::WholeModuleState>(
      handle.group(), handle.named_parameters(), [] { return std::vector<NamedPart>(); },
      HandleState::Holds::parts);
  trained_.push_back({std::move(part), parallel::PlainHandle(std::move(state)), ranks});
  return handle;
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
  if (has_experts()) return experts(part);
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
  if (rows_->group().size() > 1 || shards()) {
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
  if (shards()) {
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
                         .plan = text(),
                         .trained = {}});
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
  if (mesh_.group().size() > size("pp") || shards() || !ignored().empty())
    how.strategy = [this](torch::nn::Module& stage) { return train(unowned(stage)); };
  Pipeline pipeline(sequences ? sequences->stages(stages_) : stages_, *schedule_, mesh_["pp"],
                    sequences ? sequences->loss(loss) : loss, how);
  parts->trained = std::move(trained_);
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
  Handle handle = train(model_);
  parts->trained = std::move(trained_);
  return ParallelModel(std::move(handle), std::move(parts));
}

ParallelModel parallelize(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh,
                          ParallelPlan plan, ParallelOptions options) {
  const Composition composition(std::move(model), mesh, std::move(plan), std::move(options));
  std::shared_ptr<ParallelModelParts> parts = composition.parts();
  if (composition.has("pp")) return composition.pipelined(std::move(parts));
  return composition.whole(std::move(parts));
}

}  // namespace lockstep
