// The one table of the trainer's options, the words that their values are written in, and facts
// that follow from several of them.
#pragma once

#include <lockstep/layout/mesh_layout.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/train/options.h>
#include <lockstep/train/settings.h>
#include <lockstep/train/task.h>

#include <array>
#include <cstdint>
#include <memory>
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
  return {{{"ddp", StrategyKind::ddp}, {"dp", StrategyKind::dp}, {"ps", StrategyKind::ps}}};
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

// Adds the options, bound to `options`; those about samples for tasks that make some.
void declare_options(Settings& settings, Options& options, const Task& task);

// "pp=2,dp=2"; empty without axes.
[[nodiscard]] std::string mesh_text(const std::vector<MeshAxis>& mesh);
// From "bf16+powersgd:2"; BadInput for another text.
[[nodiscard]] HookOptions parse_hook(std::string_view text);
// " (mesh is set in out/config.toml line 2)"; empty for options of the command line.
[[nodiscard]] std::string place_of(const Options& options, const std::string& name);

// Options::shard, or what automatic stands for.
[[nodiscard]] ShardKind shard_of(const Options& options);
// The same as a level; absent: none.
[[nodiscard]] std::optional<ShardLevel> level_of(const Options& options);

// How many ranks there are on each axis; the product is the number of ranks.
struct Division {
  std::vector<MeshAxis> axes;  // those of --mesh with their sizes; empty without --mesh
  int copies = 1;              // dp
  int shards = 1;              // fsdp
  int stages = 1;              // pp
  int tensor = 1;              // tp
  int context = 1;             // cp
  int experts = 1;             // ep

  // Returns true if several ranks compute one model together.
  [[nodiscard]] bool is_model_parallel() const { return stages * tensor * context * experts > 1; }
  // Ranks, or sets of ranks, that have rows of their own.
  [[nodiscard]] int learners() const { return copies * experts * shards; }
};

// BadInput for axes that are unknown, do not make `ranks`, or do not fit --shard.
[[nodiscard]] Division division_of(const Options& options, int ranks);

// The number of ranks that keep parameters with --strategy ps; else 0.
[[nodiscard]] int server_count(const Options& options);
// How many ranks --servers and --workers make together; 1 without them.
[[nodiscard]] int usual_ranks(const Options& options);

// Options::consistency, or what stands for none.
[[nodiscard]] ps::Consistency consistency_of(const Options& options);

// BadInput for options that a model with mixtures of experts cannot have on so many ranks.
void check_mixtures(const Options& options, const Task& task, int ranks);

// Null without --hook.
[[nodiscard]] std::shared_ptr<CommunicationHook> hook_of_options(const Options& options);

// Returns true if each rank trains a copy of its own.
[[nodiscard]] inline bool has_own_copies(const Options& options) {
  return options.local_sgd.period > 0 || options.diloco.inner_steps > 0;
}

// --slots, or the number that stands for 0.
[[nodiscard]] std::int64_t slots_of(const Options& options);

// How many ranks compute one copy of the model together: the product of the axes of --mesh that
// keep their sizes in all rounds; 1 without --mesh.
[[nodiscard]] int ranks_of_a_model(const Options& options);

// The axes of --mesh in a round of this number of ranks: dp and fsdp take the ranks that the others
// leave. If both are there, fsdp has the largest size up to the given one that divides the copies;
// if neither is, dp comes first. Unchanged if the others do not divide the ranks.
[[nodiscard]] std::vector<MeshAxis> axes_of_round(std::vector<MeshAxis> axes, int ranks);

// With the number of slots, and of threads if none is given: a number that does not depend on the
// present number of ranks, because the bits of some operations depend on it.
[[nodiscard]] Options elastic_options(Options options);

}  // namespace lockstep::train
