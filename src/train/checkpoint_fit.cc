#include "train/checkpoint_fit.h"

#include "base/check.h"
#include "base/visible.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

// Of these a change says nothing: where the run is, and what the launcher decides.
constexpr std::array<std::string_view, 2> places{"out", "ranks"};

}  // namespace

void in_file(const fs::path& file, const std::function<void()>& read) {
  try {
    read();
  } catch (const BadInput& error) {
    throw BadInput(formatted("{}: {}", file.string(), error.what()));
  }
}

void check_same_model(const Configuration& configuration, const checkpoint::TrainingState& state) {
  auto compare = [&](const std::string& name, std::string_view after) {
    auto before = state.config.find(name);
    check_input(
        before == state.config.end() || before->second == after,
        "--resume: {} is {}, the checkpoint's is {}: a run goes on with the model that it has",
        name, after, before == state.config.end() ? "" : visible(before->second));
  };
  compare("task", configuration.task_name());
  for (const Settings::Entry& entry : configuration.settings().entries())
    if (entry.scope == Scope::shape) compare(entry.name, Settings::text_of(entry));
}

std::string changes_since(const Configuration& configuration, int ranks,
                          const checkpoint::TrainingState& state) {
  std::string changes;
  auto add = [&](std::string_view name, std::string_view before, std::string_view after) {
    auto shown = [](std::string_view value) { return value.empty() ? "none" : visible(value); };
    if (before == after) return;
    changes +=
        formatted("{}{} {} -> {}", changes.empty() ? "" : ", ", name, shown(before), shown(after));
  };
  for (const auto& [name, value] : configuration.kept()) {
    auto before = state.config.find(name);
    if (before != state.config.end() && !std::ranges::count(places, name))
      add(name, before->second, value);
  }
  add("ranks", std::to_string(state.ranks), std::to_string(ranks));
  return changes;
}

}  // namespace lockstep::train
