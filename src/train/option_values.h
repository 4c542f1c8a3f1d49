// How values of options are written on command lines and in files: the names of enums, and texts.
#pragma once

#include <lockstep/train/options.h>
#include <lockstep/train/settings.h>

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

// "pp=2,dp=2"; empty without axes.
[[nodiscard]] std::string mesh_text(const std::vector<MeshAxis>& mesh);
// "bf16+powersgd:2", and back; BadInput for another text.
[[nodiscard]] std::string hook_text(const HookOptions& hook);
[[nodiscard]] HookOptions parse_hook(std::string_view text);

// The text is that of shard_of(). Files keep "auto" where an axis fsdp makes it full.
[[nodiscard]] WrittenValue shard_in_words(Options& options);
[[nodiscard]] WrittenValue mesh_as_text(std::vector<MeshAxis>& mesh);
[[nodiscard]] WrittenValue hook_as_text(HookOptions& hook);
[[nodiscard]] WrittenValue schedule_in_words(std::string& pipeline);
[[nodiscard]] WrittenValue dtype_in_words(std::optional<c10::ScalarType>& dtype);
[[nodiscard]] WrittenValue consistency_in_words(std::optional<ps::Consistency>& consistency);
[[nodiscard]] WrittenValue time_as_text(Duration& time);
// --node-shared and --diloco-int8.
[[nodiscard]] WrittenValue node_shared_as_flag(ShardStorage& storage);
[[nodiscard]] WrittenValue int8_as_flag(PseudoGradients& gradients);

}  // namespace lockstep::train
