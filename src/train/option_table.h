// The table of the trainer's options, the words for their values, and properties that follow from
// several options.
#pragma once

#include <lockstep/layout/mesh_layout.h>
#include <lockstep/train/options.h>
#include <lockstep/train/settings.h>
#include <lockstep/train/task.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

constexpr std::array<train::Named<ContextMethod>, 2> names_of(ContextMethod) {
  return {{{"ring", ContextMethod::ring}, {"ulysses", ContextMethod::ulysses}}};
}

}  // namespace lockstep

namespace lockstep::train {

constexpr std::array<Named<OptimizerKind>, 2> names_of(OptimizerKind) {
  return {{{"adamw", OptimizerKind::adamw}, {"sgd", OptimizerKind::sgd}}};
}

constexpr std::array<Named<ScheduleKind>, 5> names_of(ScheduleKind) {
  return {{{"constant", ScheduleKind::constant},
           {"step", ScheduleKind::step},
           {"cosine", ScheduleKind::cosine},
           {"wsd", ScheduleKind::wsd},
           {"one-cycle", ScheduleKind::one_cycle}}};
}

constexpr std::array<Named<StrategyKind>, 3> names_of(StrategyKind) {
  return {
      {{"ddp", StrategyKind::ddp}, {"threads", StrategyKind::threads}, {"ps", StrategyKind::ps}}};
}

constexpr std::array<Named<ShardKind>, 5> names_of(ShardKind) {
  return {{{"auto", ShardKind::automatic},
           {"none", ShardKind::none},
           {"optimizer", ShardKind::optimizer},
           {"gradients", ShardKind::gradients},
           {"full", ShardKind::full}}};
}

constexpr std::array<Named<OnSaveError>, 2> names_of(OnSaveError) {
  return {{{"stop", OnSaveError::stop}, {"go-on", OnSaveError::go_on}}};
}

// The axes of --mesh.
inline constexpr std::string_view stages_axis = "pp";
inline constexpr std::string_view copies_axis = "dp";
inline constexpr std::string_view shards_axis = "fsdp";
inline constexpr std::string_view tensor_axis = "tp";
inline constexpr std::string_view context_axis = "cp";
inline constexpr std::string_view experts_axis = "ep";

// Adds the options, bound to `options`. Options about samples are added only for tasks that make
// samples.
void declare_options(Settings& settings, Options& options, const Task& task);

// Formats a mesh: "pp=2,dp=2"; empty without axes.
[[nodiscard]] std::string mesh_text(const std::vector<MeshAxis>& mesh);
// Returns " (mesh is set in out/config.toml line 2)", or an empty text for options of the command
// line.
[[nodiscard]] std::string place_of(const Options& options, const std::string& name);

// Returns Options::shard with `automatic` resolved.
[[nodiscard]] ShardKind shard_of(const Options& options);
// Returns shard_of() as a level; std::nullopt if the model is not sharded.
[[nodiscard]] std::optional<ShardLevel> level_of(const Options& options);

// Returns the axes of --mesh with their sizes. Without --mesh, all ranks are on one axis: fsdp if
// --shard shards the model, otherwise dp. Throws BadInput for axes that are unknown, do not
// multiply to `ranks`, or do not fit --shard.
[[nodiscard]] MeshLayout layout_of(const Options& options, int ranks);

// Returns true if several ranks compute one model together.
[[nodiscard]] inline bool is_model_parallel(const MeshLayout& layout) {
  return layout.size(stages_axis) * layout.size(tensor_axis) * layout.size(context_axis) *
             layout.size(experts_axis) >
         1;
}
// Returns the number of ranks, or sets of ranks, that have their own rows.
[[nodiscard]] inline int dp_ranks_in(const MeshLayout& layout) {
  return layout.size(copies_axis) * layout.size(experts_axis) * layout.size(shards_axis);
}

}  // namespace lockstep::train
