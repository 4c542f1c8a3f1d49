// The checks of parallelize() before anything is changed.
#include "parallel/parallel_composition.h"

#include "base/check.h"
#include "module/tensors.h"
#include "parallel/data/checks.h"
#include "parallel/sharded/checks.h"
#include "parallel/state_dict.h"
#include "parallel/tensor/tensor_parallel_parameter.h"
#include "parallel/tensor/tensor_state.h"

#include <lockstep/global/tensor.h>
#include <lockstep/layout/name_pattern.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 6> known_axes = {"pp", "dp", "ep", "cp", "fsdp", "tp"};

bool names_one_of(const std::string& pattern, const std::vector<std::string>& names) {
  return std::ranges::any_of(
      names, [&](const std::string& name) { return layout::names_around(pattern, name); });
}

}  // namespace

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  return names;
}

void keep_naming(std::vector<std::string>& patterns, const std::vector<std::string>& names) {
  std::erase_if(patterns, [&](const auto& pattern) { return !names_one_of(pattern, names); });
}

void keep_naming(UnitRules& units, const std::vector<std::string>& names) {
  std::erase_if(units, [&](const auto& rule) { return !names_one_of(rule.pattern, names); });
}

void keep_naming(TensorPlan& plan, const std::vector<std::string>& names) {
  std::erase_if(plan, [&](const auto& one) { return !names_one_of(one.first, names); });
}

void Composition::check_axes() const {
  for (const MeshAxis& axis : mesh_.axes())
    check(std::ranges::find(known_axes, axis.name) != known_axes.end(),
          "parallelize: axis \"{}\": known axes are {}", axis.name, listed(known_axes, ", "));
}

// Returns the properties that must be equal on all ranks.
std::vector<std::string> Composition::lines() const {
  const modules::ModuleTensors tensors = modules::tensors_of(*model_, ignored());
  std::vector<std::string> lines = shards() ? sharded::describe(*model_, tensors, options_.shard)
                                            : sharded::lines_of(*model_, tensors);
  if (!shards())
    for (std::string& line : data_parallel::lines_of(options_.data))
      lines.push_back(std::move(line));
  lines.push_back(formatted("micro_batches = {}", options_.micro_batches));
  if (has("pp"))
    lines.push_back(formatted("schedule {}, {} stages per rank", options_.pipeline.schedule,
                              options_.pipeline.stages_per_rank));
  lines.push_back(formatted("sequence_parallel = {}, sequence_dim = {}, {}, {}",
                            options_.sequence_parallel, options_.sequence_dim,
                            options_.context == ContextMethod::ring ? "ring" : "ulysses",
                            options_.balance == ContextBalance::zigzag ? "zigzag" : "contiguous"));
  for (const std::string& pattern : options_.activation_checkpointing)
    lines.push_back(formatted("activation_checkpointing {}, every {}, offload = {}, keep {}",
                              pattern, options_.activations.every, options_.activations.offload,
                              listed(options_.activations.keep, ", ")));
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
  check(options_.activations.every >= 1,
        "parallelize: expected activations.every of at least 1, found {}",
        options_.activations.every);
  check(!has("tp") || !plan_.tensor.empty(),
        "parallelize: axis tp={} needs a tensor plan: give .tensor, or parallel_plan(const Net&)",
        size("tp"));
  check(!has("pp") || !plan_.pieces.empty(),
        "parallelize: axis pp={} needs .pieces: give them in parallel_plan(const Net&)",
        size("pp"));
  check_tensors();
  check_context();
  check_experts();
  check_copies();
}

void Composition::check_copies() const {
  const bool parts = has("tp") || has("cp") || has("ep") || has_experts();
  check(ignored().empty() || !parts,
        "parallelize: .{}.ignored: expected a mesh of pp, dp and fsdp and a model without mixtures "
        "of experts, found {}{}",
        shards() ? "shard" : "data", mesh_.layout().describe(),
        has_experts() ? " and a model with mixtures" : "");
  if (shards()) {
    sharded::check_options(options_.shard);
    check_units();
    return;
  }
  data_parallel::check_options(options_.data);
  check(options_.data.hook == nullptr || !(has("pp") || has_experts()),
        "parallelize: .data.hook: expected a mesh without pp and a model without mixtures of "
        "experts, whose parts would share one hook, found {}{}",
        mesh_.layout().describe(), has_experts() ? " and a model with mixtures" : "");
}

// If a weight is sharded in several parts, such as queries, keys and values, a rank's parts are
// contiguous, and therefore in one unit.
void Composition::check_units() const {
  std::vector<std::string> patterns;
  for (const UnitRule& rule : options_.shard.units) patterns.push_back(rule.pattern);
  layout::check_patterns("unit pattern", patterns, parameter_names(*model_));
  if (!has("tp")) return;
  for (const auto& one : tensor_parallel::planned(plan_.tensor, *rest_, size("tp"))) {
    if (!one.placement.is_shard()) continue;
    std::vector<layout::UnitItem> leaves;
    std::vector<std::string> names;
    for (int leaf = 0; leaf < one.placement.parts(); ++leaf) {
      const std::vector<std::string> own = tensor_parallel::names_of_leaf(
          {.name = one.parameter.name, .aliases = one.parameter.aliases}, leaf);
      leaves.push_back({own.front(), "", {own.begin() + 1, own.end()}});
      names.insert(names.end(), own.begin(), own.end());
    }
    std::vector<std::string> own = patterns;
    keep_naming(own, names);
    check(layout::plan_units(leaves, own).size() == 1,
          "parallelize: {}: fully_shard() would split its {} parts over several units; list its "
          "module in .shard.units or the plan's .blocks",
          one.parameter.name, one.placement.parts());
  }
}

// Ranks of several stages have the same shard of a tied parameter if its unit is the same.
void Composition::check_ties() const {
  if (!has("pp") || !has("fsdp")) return;
  const std::vector<int> ranks = plan::rank_of_stages(*schedule_);
  using Unit = std::set<const at::TensorImpl*>;
  std::map<const at::TensorImpl*, std::pair<std::size_t, Unit>> units;  // the first stage's
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const std::vector<NamedParameter> parameters = unique_parameters(*stages_[i].module);
    UnitRules rules = options_.shard.units;
    keep_naming(rules, parameter_names(*stages_[i].module));
    for (const layout::PlannedUnit& planned : sharded::plan_of(parameters, rules)) {
      Unit unit;
      for (const int item : planned.items)
        unit.insert(parameters[static_cast<std::size_t>(item)].tensor.unsafeGetTensorImpl());
      for (const int item : planned.items) {
        const auto& [name, tensor, aliases] = parameters[static_cast<std::size_t>(item)];
        const auto& [first, other] =
            units.emplace(tensor.unsafeGetTensorImpl(), std::pair(i, unit)).first->second;
        check(ranks[first] == ranks[i] || unit == other,
              "parallelize: {} is tied over stages {} and {}, but their units shard it "
              "differently; list its module in .shard.units",
              name, first, i);
      }
    }
  }
}

void Composition::check_tensors() const {
  if (has("tp")) (void)tensor_parallel::planned(plan_.tensor, *rest_, size("tp"));
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
        "parallelize: context ulysses: expected a number of key heads divisible by cp x tp, {}, "
        "found {}; ring takes any",
        ranks, plan_.heads);
}

void Composition::check_experts() const {
  for (const auto& [name, mixture] : mixtures_)
    check(plan_.experts == 0 || mixture->options().experts == plan_.experts,
          "parallelize: {}: expected as many experts as in the plan, {}, found {}", name,
          plan_.experts, mixture->options().experts);
  if (!has("ep")) return;
  check(!mixtures_.empty(),
        "parallelize: axis ep={} needs a model with mixtures of experts (models::Mixture), found "
        "none",
        size("ep"));
  for (const auto& [name, mixture] : mixtures_)
    check(mixture->options().experts % size("ep") == 0,
          "parallelize: {}: expected a number of experts divisible by ep, {}, found {}", name,
          size("ep"), mixture->options().experts);
}

// Makes checks that the strategies would otherwise make only after activation checkpointing has
// changed the model.
void Composition::check_model() const {
  const modules::ModuleTensors tensors = modules::tensors_of(*model_, ignored());
  for (const auto& [name, tensor, aliases] : tensors.parameters)
    check(
        !is_global(tensor),
        "parallelize: {}: expected a plain tensor, found a global one, which another handle trains",
        name);
  modules::check_ordinary(tensors, "parallelize");
  parallel::check_not_sharded(tensors.parameters, "parallelize");
  if (shards()) sharded::check_not_divided(tensors.parameters);
  if (shards() || has("tp") || has("cp") || has_experts())
    modules::check_alone(tensors, "parallelize");
}

void Composition::check_storage() const {
  if (!shards()) return;
  const std::vector<std::string> others = has_experts() ? std::vector<std::string>{"dp", "ep", "cp"}
                                                        : std::vector<std::string>{"dp", "cp"};
  const Group ranks = mesh_["fsdp"];
  sharded::check_storage({.whole = mesh_.group(),
                          .gather = ranks,
                          .reduce = ranks,
                          .replicas = mesh_.sub_mesh(others).group()},
                         unique_parameters(*model_), options_.shard);
}

}  // namespace lockstep
