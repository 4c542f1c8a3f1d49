#include "train/checkpoint_fit.h"

#include <lockstep/base/check.h>
#include <lockstep/base/visible.h>
#include <lockstep/module/state_dict.h>

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

// Of these a change says nothing: where the run is, and what the launcher decides.
constexpr std::array<std::string_view, 2> places{"out", "ranks"};

void check_generator_state(const at::Tensor& state, std::size_t rank) {
  try {
    at::Generator generator = at::detail::createCPUGenerator();
    generator.set_state(state);
  } catch (const c10::Error& error) {
    throw BadInput(formatted("rank{}: no state of a random generator: {}", rank,
                             visible(error.what_without_backtrace())));
  }
}

}  // namespace

void in_file(const fs::path& file, const std::function<void()>& read) {
  try {
    read();
  } catch (const BadInput& error) {
    throw BadInput(formatted("{}: {}", file.string(), error.what()));
  }
}

checkpoint::TrainingState load_checkpoint(const fs::path& folder) {
  checkpoint::TrainingState state = checkpoint::load_training_state(folder);
  in_file(folder / "random.safetensors", [&] {
    for (std::size_t rank = 0; rank < state.random.size(); ++rank)
      check_generator_state(state.random[rank], rank);
  });
  return state;
}

void check_dtypes(const torch::nn::Module& module, const checkpoint::NamedTensors& tensors) {
  for (const NamedTensor& own : named_tensors(module)) {
    auto found = tensors.find(own.name);
    if (found == tensors.end()) continue;
    check_input(found->second.scalar_type() == own.tensor.scalar_type(),
                "{}: expected dtype {}, found {}", visible(own.name),
                c10::toString(own.tensor.scalar_type()),
                c10::toString(found->second.scalar_type()));
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
  add("ranks", std::to_string(state.random.size()), std::to_string(ranks));
  return changes;
}

}  // namespace lockstep::train
