#include "train/run_description.h"

#include "base/check.h"
#include "base/format.h"
#include "base/visible.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lockstep::train {
namespace {

// Prefix of names of a description, in maps that also have other entries.
constexpr std::string_view description_prefix = "task.";
// Changes of these entries are not reported: the run's folder, and a number that the launcher
// decides.
constexpr std::array<std::string_view, 2> places{"out", "ranks"};

bool is_of_model(const Settings::Entry& entry) {
  return entry.scope == Scope::model || entry.scope == Scope::shape;
}

}  // namespace

void in_file(const std::filesystem::path& file, const std::function<void()>& read) {
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

checkpoint::Metadata model_description(const Configuration& configuration, std::int64_t step) {
  checkpoint::Metadata entries{
      {"format", "pt"}, {"task", configuration.task_name()}, {"step", formatted("{}", step)}};
  for (const Settings::Entry& entry : configuration.settings().entries())
    if (is_of_model(entry)) entries[entry.name] = Settings::text_of(entry);
  entries.merge(configuration.task().description());
  return entries;
}

const std::string& described(const checkpoint::Metadata& metadata, const std::string& name) {
  auto found = metadata.find(name);
  check_input(found != metadata.end(), "metadata: expected an entry '{}', found none", name);
  return found->second;
}

void restore_model(Configuration& configuration, const checkpoint::Metadata& metadata) {
  try {
    for (const Settings::Entry& entry : configuration.settings().entries())
      if (is_of_model(entry))
        configuration.settings().set(entry.name, described(metadata, entry.name));
    configuration.task().restore(metadata);
  } catch (const BadInput& error) {
    std::string what = error.what();
    throw BadInput(what.starts_with("metadata: ") ? what : "metadata: " + what);
  }
}

void keep_description(checkpoint::Metadata& progress, const Task& task) {
  for (const auto& [name, text] : task.description())
    progress[std::string(description_prefix) + name] = text;
}

checkpoint::Metadata kept_description(const checkpoint::Metadata& progress) {
  checkpoint::Metadata description;
  for (const auto& [name, text] : progress)
    if (name.starts_with(description_prefix))
      description[name.substr(description_prefix.size())] = text;
  return description;
}

}  // namespace lockstep::train
