#include "apps/checkpoint/saved_step.h"

#include "base/check.h"
#include "base/text.h"
#include "base/visible.h"
#include "checkpoint/optimizer_state.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

// Builds nested modules from names with dots.
struct Named : torch::nn::Module {
  void add(const std::string& name, const at::Tensor& tensor) {
    const std::size_t point = name.find('.');
    if (point != std::string::npos) {
      const std::string child = name.substr(0, point);
      std::shared_ptr<Named>& below = children[child];
      if (below == nullptr) below = register_module(child, std::make_shared<Named>());
      below->add(name.substr(point + 1), tensor);
    } else if (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble ||
               tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16) {
      register_parameter(name, tensor);
    } else {
      register_buffer(name, tensor);
    }
  }
  std::map<std::string, std::shared_ptr<Named>> children;
};

std::shared_ptr<Named> module_of(const checkpoint::TensorSources& tensors) {
  auto module = std::make_shared<Named>();
  for (const auto& [name, tensor] : tensors) {
    try {
      module->add(name, tensor.values().detach().contiguous().clone());
    } catch (const c10::Error& error) {
      throw BadInput(
          formatted("tensor '{}': a module cannot have this name together with the other names: {}",
                    visible(name), visible(error.what_without_backtrace(), 200)));
    }
  }
  return module;
}

bool has_field(const checkpoint::TensorSources& state, std::string_view field) {
  return std::ranges::any_of(
      state, [&](const auto& item) { return item.first.ends_with(formatted(".{}", field)); });
}

// Makes an optimizer whose class follows from the fields of the state; hyperparameters are not
// saved.
std::unique_ptr<torch::optim::Optimizer> optimizer_for(const checkpoint::TensorSources& state,
                                                       std::vector<at::Tensor> parameters) {
  using namespace torch::optim;
  if (has_field(state, "exp_avg"))
    return std::make_unique<AdamW>(std::move(parameters),
                                   AdamWOptions().amsgrad(has_field(state, "max_exp_avg_sq")));
  if (has_field(state, "square_avg"))
    return std::make_unique<RMSprop>(std::move(parameters),
                                     RMSpropOptions()
                                         .momentum(has_field(state, "momentum_buffer") ? 0.9 : 0)
                                         .centered(has_field(state, "grad_avg")));
  if (has_field(state, "sum")) return std::make_unique<Adagrad>(std::move(parameters));
  return std::make_unique<SGD>(std::move(parameters), SGDOptions(0.1).momentum(0.9));
}

}  // namespace

std::optional<std::int64_t> step_named(const fs::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::optional<std::int64_t> step = parse_integer(name.substr(prefix.size()));
  if (!step || checkpoint::checkpoint_name(*step) != name) return std::nullopt;
  return step;
}

void save_step(const fs::path& path, const Source& source) {
  const std::shared_ptr<Named> module = module_of(source.model);
  checkpoint::NamedParameters named;
  std::vector<at::Tensor> parameters;
  for (const auto& item : module->named_parameters()) {
    named.emplace_back(item.key(), item.value());
    parameters.push_back(item.value());
  }
  check_input(!parameters.empty(), "expected a model with floating-point parameters, found none");
  const auto optimizer = optimizer_for(source.optimizer, parameters);
  checkpoint::NamedTensors state;
  for (const auto& [name, tensor] : source.optimizer) state.emplace(name, tensor.values());
  try {
    checkpoint::load_optimizer_state(*optimizer, named, state);
  } catch (const BadInput& problem) {
    throw BadInput(
        formatted("expected the optimizer state of Adam, AdamW, SGD, RMSprop or Adagrad, found "
                  "another one: {}",
                  problem.what()));
  }
  const std::shared_ptr<torch::nn::Module> trained = module;
  DistributedDataParallel handle(trained, Group());
  checkpoint::TrainingState training = source.training.value_or(checkpoint::TrainingState());
  training.step = step_named(path).value_or(0);
  fs::path run = path.parent_path();
  if (run.empty()) run = ".";
  checkpoint::Metadata description = source.metadata;
  checkpoint::save(run, handle, *optimizer, training, {.description = std::move(description)});
}

}  // namespace lockstep::apps
