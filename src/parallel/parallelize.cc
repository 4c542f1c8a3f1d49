#include <lockstep/parallel/parallelize.h>

#include "base/check.h"
#include "global/mesh_context.h"
#include "module/checks.h"
#include "parallel/parallel_composition.h"
#include "parallel/pipeline/pipeline_state.h"

#include <lockstep/parallel/sharded/fully_shard.h>

#include <map>
#include <optional>
#include <utility>

namespace lockstep {
namespace {

// Returns the modules that several pieces name. Their weights are tied across stages, and the
// stages must shard them alike.
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

std::vector<std::string> tensor_names(const torch::nn::Module& module) {
  std::vector<std::string> names = parameter_names(module);
  for (const auto& buffer : module.named_buffers()) names.push_back(buffer.key());
  return names;
}

}  // namespace

Composition::Composition(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh,
                         ParallelPlan plan, ParallelOptions options)
    : model_(std::move(model)), mesh_(mesh), plan_(std::move(plan)), options_(std::move(options)) {
  check(model_ != nullptr, "parallelize: the model must not be null");
  check_axes();
  if (!options_.tensor.empty()) plan_.tensor = options_.tensor;
  if (options_.shard.units.empty()) {
    options_.shard.units.assign(plan_.blocks.begin(), plan_.blocks.end());
    if (has("pp"))
      for (const std::string& name : tied_modules(*model_, plan_.pieces))
        options_.shard.units.emplace_back(name);
  }
  mixtures_ = tensor_parallel::mixtures_of(*model_);
  rest_ = mixtures_.empty() ? model_ : tensor_parallel::separate_experts(*model_).rest;
  modules::check_same_lines(mesh_.group(), lines(), {.tag = "parallelize"});
  check_plan();
  check_model();
  cut_stages();
  check_ties();
  make_meshes();
  check_storage();
}

// Check on every mesh, so that a single rank also finds pieces that do not fit the model.
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
  std::vector<std::string> rows = {"dp", "cp", "fsdp"};
  data_ = mesh_.sub_mesh({"dp", "ep", "fsdp"});
  copies_ = mesh_.sub_mesh(rows);
  if (has_experts()) rows.insert(rows.begin() + 1, "ep");
  rows_ = mesh_.sub_mesh(rows);
  rows.emplace_back("tp");
  all_ = mesh_.sub_mesh(rows);
  if (has_experts() && has("cp")) whole_rows_ = all_->sub_mesh({"dp", "ep", "fsdp"});
  std::vector<std::string> tensors;
  if (has("cp")) tensors.emplace_back("cp");
  // With sequence_parallel, a rank's part of a sequence is sharded again.
  if (has("tp")) tensors.insert(options_.sequence_parallel ? tensors.end() : tensors.begin(), "tp");
  if (!tensors.empty()) tensors_ = global::mesh_of_handle(mesh_.sub_mesh(tensors));
}

std::vector<TensorParts> Composition::tensor_parts(
    const std::shared_ptr<torch::nn::Module>& stage) const {
  const bool is_alone = mesh_.group().size() == size("pp") && !shards() && ignored().empty();
  if (has("pp") && is_alone) return {};
  tensor_parallel::SeparateTensors separate{.rest = stage, .experts = nullptr};
  if (has_experts()) separate = tensor_parallel::separate_experts(*stage);
  TensorPlan plan = has("tp") ? plan_.tensor : TensorPlan();
  keep_naming(plan, parameter_names(*separate.rest));
  std::vector<TensorParts> all = {
      {.module = separate.rest,
       .tensors = tensors_,
       .cut = {.plan = std::move(plan),
               .sequence_parallel = options_.sequence_parallel && has("tp"),
               .sequence_dim = options_.sequence_dim,
               .attention_by_heads = has("cp") && options_.context == ContextMethod::ulysses},
       .rows = *rows_,
       .all = *all_}};
  if (separate.experts != nullptr)
    all.push_back({.module = separate.experts,
                   .tensors = Mesh(mesh_["ep"], {{"tp", size("ep")}}),
                   .cut = {.plan = tensor_parallel::plan_of_experts(*separate.experts)},
                   .rows = *copies_,
                   .all = *rows_,
                   .are_experts = true});
  return all;
}

Handle Composition::copies(const std::shared_ptr<torch::nn::Module>& module, const Mesh& ranks,
                           ParallelModelParts& parts) const {
  Handle handle;
  if (shards()) {
    ShardOptions shard = options_.shard;
    keep_naming(shard.ignored, tensor_names(*module));
    keep_naming(shard.units, parameter_names(*module));
    handle = fully_shard(module, ranks, shard);
  } else {
    DistributedDataParallelOptions data = options_.data;
    keep_naming(data.ignored, tensor_names(*module));
    handle = DistributedDataParallel(module, ranks, data);
  }
  parts.trained.push_back({module, HandleState::shared_of(handle)});
  return handle;
}

Handle Composition::train(const TensorParts& tensors, ParallelModelParts& parts) const {
  if (!tensors.tensors) return with_groups(copies(tensors.module, tensors.rows, parts));
  const auto state = std::make_shared<TensorParallelState>(tensors.module, *tensors.tensors,
                                                           tensors.cut, tensors.all);
  const bool has_copies = tensors.rows.group().size() > 1 || shards();
  state->train(has_copies ? copies(state->parts(), tensors.rows, parts) : Handle());
  Handle handle = with_groups(HandleState::handle_of(state));
  // The ranks of tp have the same experts, and no other step makes their values equal.
  if (tensors.are_experts && has("tp"))
    for (const Part& part : handle.loading())
      mesh_["tp"].broadcast(part.tensor, 0, {.tag = part.name}).wait();
  return handle;
}

// Token exchanges and global tensors use groups besides the handle's own; abort these, too.
Handle Composition::with_groups(Handle handle) const {
  HandleState& state = HandleState::of(handle);
  if (tensors_) state.aborts(*tensors_);
  if (has_experts()) state.aborts(*rows_);
  if (whole_rows_) state.aborts(*whole_rows_);
  return handle;
}

std::string Composition::text() const {
  std::string text = formatted("parallelize on {} ({})\n", mesh_.layout().describe(),
                               counted(mesh_.group().size(), "rank"));
  for (std::size_t i = 0; has("pp") && i < stages_.size(); ++i)
    text += formatted("stage {} on rank {} of pp: {}\n", i, plan::rank_of_stages(*schedule_)[i],
                      stages_[i].name);
  if (has("tp")) text += describe(plan_.tensor, *model_, size("tp"), options_.sequence_parallel);
  if (has("cp"))
    text += formatted("sequences: parts on {} of cp, {}\n", counted(size("cp"), "rank"),
                      options_.context == ContextMethod::ring ? "ring" : "ulysses");
  for (const auto& [name, mixture] : mixtures_)
    if (has("ep"))
      text += formatted("experts: {}: {} on each of {} of ep\n", name,
                        mixture->options().experts / size("ep"), counted(size("ep"), "rank"));
  if (shards()) {
    std::vector<std::string> units;
    for (const UnitRule& rule : options_.shard.units) units.push_back(rule.pattern);
    text += formatted("shards: on {} of fsdp, units {}\n", counted(size("fsdp"), "rank"),
                      units.empty() ? "(one)" : listed(units, ", "));
  }
  if (has("dp")) text += formatted("copies: {}\n", size("dp"));
  return text;
}

std::shared_ptr<ParallelModelParts> Composition::make_parts() const {
  auto parts = std::make_shared<ParallelModelParts>(
      ParallelModelParts{.mesh = mesh_,
                         .data = data_->group(),
                         .stages = mesh_["pp"],
                         .stage_place = mesh_.coordinate("pp"),
                         .micro_batches = options_.micro_batches,
                         .plan_loss = plan_.loss,
                         .step_loss = std::make_shared<PipelineLoss>(),
                         .plan = text()});
  if (!options_.activation_checkpointing.empty())
    parts->checkpoints =
        checkpoint_activations(*model_, options_.activation_checkpointing, options_.activations);
  if (has("cp"))
    parts->sequences.emplace(
        *tensors_, Shard(options_.sequence_dim).zigzag(options_.balance == ContextBalance::zigzag));
  return parts;
}

void Composition::train(std::vector<pipeline::StageSet>& sets, ParallelModelParts& parts) const {
  for (pipeline::StageSet& set : sets)
    for (const TensorParts& tensors : tensor_parts(set.module)) set.train(train(tensors, parts));
  // Do this last: if construction fails, the module must not send tokens.
  if (has_experts())
    for (const pipeline::StageSet& set : sets)
      tensor_parallel::exchange_tokens(*set.module, {*rows_, whole_rows_, tensors_}, parts.tokens);
}

Handle Composition::train_stages(ParallelModelParts& parts) const {
  PipelineLoss loss = [step_loss = parts.step_loss](const Tensors& outputs,
                                                    const Tensors& targets) {
    return (*step_loss)(outputs, targets);
  };
  if (parts.sequences) loss = parts.sequences->loss(std::move(loss));
  const auto state = std::make_shared<PipelineState>(
      parts.sequences ? parts.sequences->stages(stages_) : stages_, *schedule_, mesh_["pp"],
      std::move(loss), mesh_.group(), PipelineOptions());
  train(state->sets(), parts);
  state->finish();
  return HandleState::handle_of(state);
}

StageForward Composition::whole_forward() const {
  StageForward forward = stages_.empty() ? plan_.forward : stages_.front().forward;
  if (!forward)
    forward = [](const Tensors& /*inputs*/) -> Tensors {
      throw InvalidArgument(
          "step(): the model has no single forward() of tensors: set .pieces or .forward in "
          "parallel_plan(const Net&)");
    };
  return forward;
}

Handle Composition::train_whole(ParallelModelParts& parts) const {
  parts.whole.emplace(Stage{"model", model_, whole_forward()});
  std::vector<pipeline::StageSet> whole(1);
  whole.front().module = model_;
  train(whole, parts);
  whole.front().finish();
  return std::move(whole.front().handle);
}

ParallelModel Composition::model() const {
  std::shared_ptr<ParallelModelParts> parts = make_parts();
  Handle handle = has("pp") ? train_stages(*parts) : train_whole(*parts);
  HandleState& state = HandleState::of(handle);
  // Ranks also wait for each other in the caller's groups, for example in logging between steps.
  state.aborts(mesh_);
  state.aborts(parts->data);
  return ParallelModel(std::move(handle), std::move(parts));
}

ParallelModel parallelize(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh,
                          ParallelPlan plan, ParallelOptions options) {
  return Composition(std::move(model), mesh, std::move(plan), std::move(options)).model();
}

}  // namespace lockstep
