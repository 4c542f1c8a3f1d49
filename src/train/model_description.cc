#include "train/model_description.h"

#include "base/check.h"
#include "base/format.h"

#include <string_view>

namespace lockstep::train {
namespace {

// Before the names of a description, where other entries are beside them.
constexpr std::string_view prefix = "task.";

bool is_of_model(const Settings::Entry& entry) {
  return entry.scope == Scope::model || entry.scope == Scope::shape;
}

}  // namespace

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
  for (const auto& [name, text] : task.description()) progress[std::string(prefix) + name] = text;
}

checkpoint::Metadata kept_description(const checkpoint::Metadata& progress) {
  checkpoint::Metadata description;
  for (const auto& [name, text] : progress)
    if (name.starts_with(prefix)) description[name.substr(prefix.size())] = text;
  return description;
}

}  // namespace lockstep::train
