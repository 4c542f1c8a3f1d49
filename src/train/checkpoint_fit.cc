#include "train/checkpoint_fit.h"

#include "base/check.h"
#include "base/visible.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

// What the parameters' shapes and meaning follow from.
constexpr std::array<std::string_view, 5> model_options{"layers", "heads", "width", "block",
                                                        "vocabulary"};
// Of these a change says nothing: where the run is, and what the launcher decides.
constexpr std::array<std::string_view, 2> places{"out", "ranks"};

std::string full_path(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  fs::path full = fs::absolute(path, error);
  return error ? path : full.lexically_normal().string();
}

}  // namespace

void in_file(const fs::path& file, const std::function<void()>& read) {
  try {
    read();
  } catch (const BadInput& error) {
    throw BadInput(formatted("{}: {}", file.string(), error.what()));
  }
}

checkpoint::Metadata kept_options(const Options& options) {
  Options full = options;
  full.data = full_path(options.data);
  full.offload = full_path(options.offload);
  checkpoint::Metadata texts{{"task", options.task}};
  for (const OptionRow& row : option_rows())
    if (row.kept && row.is_for(options.task)) texts[std::string(row.name)] = option_text(full, row);
  return texts;
}

void check_same_model(const Options& options, const checkpoint::TrainingState& state) {
  const checkpoint::Metadata now = kept_options(options);
  auto compare = [&](std::string_view name) {
    auto before = state.config.find(std::string(name));
    auto after = now.find(std::string(name));
    if (before == state.config.end() || after == now.end()) return;
    check_input(
        before->second == after->second,
        "--resume: {} is {}, the checkpoint's is {}: a run goes on with the model that it has",
        name, after->second, visible(before->second));
  };
  compare("task");
  for (std::string_view name : model_options) compare(name);
}

std::string changes_since(const Options& options, int ranks,
                          const checkpoint::TrainingState& state) {
  std::string changes;
  auto add = [&](std::string_view name, std::string_view before, std::string_view after) {
    auto shown = [](std::string_view value) { return value.empty() ? "none" : visible(value); };
    if (before == after) return;
    changes +=
        formatted("{}{} {} -> {}", changes.empty() ? "" : ", ", name, shown(before), shown(after));
  };
  for (const auto& [name, value] : kept_options(options)) {
    auto before = state.config.find(name);
    if (before != state.config.end() && !std::ranges::count(places, name))
      add(name, before->second, value);
  }
  add("ranks", std::to_string(state.ranks), std::to_string(ranks));
  return changes;
}

}  // namespace lockstep::train
