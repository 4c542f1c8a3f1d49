#include <lockstep/module/checkpoint_activations.h>

#include "base/check.h"
#include "base/text.h"
#include "dispatch/call.h"
#include "dispatch/key.h"
#include "dispatch/lazy_storage.h"
#include "dispatch/recompute/activation_checkpoint_state.h"

#include <lockstep/layout/name_pattern.h>
#include <lockstep/module/named_parameters.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

namespace lockstep {
namespace {

// Returns the outermost module around a parameter that a pattern matches, or an empty text.
std::string_view block_of(const std::vector<std::string>& patterns,
                          const NamedParameter& parameter) {
  const auto around = [&](const std::string& name) -> std::string_view {
    std::string_view found;
    for (std::string_view path : layout::paths_of(name))  // innermost first
      if (path != name && std::ranges::any_of(patterns, [&](const std::string& pattern) {
            return layout::names_path(pattern, path);
          }))
        found = path;
    return found;
  };
  std::string_view found = around(parameter.name);
  for (const std::string& alias : parameter.aliases)
    if (found.empty()) found = around(alias);
  return found;
}

[[noreturn]] void refuse(const std::string& pattern, const std::vector<NamedParameter>& all) {
  std::set<std::string_view> modules;
  for (const NamedParameter& parameter : all)
    for (std::string_view path : layout::paths_of(parameter.name))
      if (path != parameter.name) modules.insert(path);
  throw InvalidArgument(
      "checkpoint_activations: expected a pattern that names a module with parameters, " +
      unknown_name("pattern", pattern, std::vector(modules.begin(), modules.end())));
}

void check_options(const ActivationOptions& options) {
  check(options.every >= 1, "checkpoint_activations: expected every to be at least 1, found {}",
        options.every);
  for (const std::string& name : options.keep) {
    const auto known = c10::Dispatcher::singleton().getAllOpNames();
    check(
        std::ranges::any_of(known, [&](const auto& one) { return one.name == name; }),
        "checkpoint_activations: keep: expected the name of an operation, such as aten::mm, found "
        "{}",
        name);
  }
}

// Routes operations on the parameter to the interceptors: same memory, with one more dispatch key.
void give_key(const at::Tensor& parameter) {
  const c10::DispatchKey key = dispatch::key();
  if (parameter.key_set().has(key)) return;
  at::NoGradGuard no_grad;
  at::Tensor(parameter).set_data(dispatch::place_in(parameter.storage(), parameter.scalar_type(),
                                                    parameter.storage_offset(), parameter.sizes(),
                                                    parameter.strides(), c10::DispatchKeySet(key)));
}

}  // namespace

ActivationCheckpoints::Counts ActivationCheckpoints::counts() const {
  const dispatch::ActivationCheckpointState::Counts counts = state_->counts();
  return {counts.blocks, counts.released_bytes, counts.recomputed_blocks, counts.operations};
}

void ActivationCheckpoints::reset() { state_->reset_counts(); }

ActivationCheckpoints checkpoint_activations(const ModuleRef& module,
                                             const std::vector<std::string>& patterns,
                                             const ActivationOptions& options) {
  const std::shared_ptr<torch::nn::Module> whole = module.shared("checkpoint_activations");
  check_options(options);
  const std::vector<NamedParameter> parameters = unique_parameters(*whole);
  for (const NamedParameter& parameter : parameters)
    check(!dispatch::has_block_mark(parameter.tensor),
          "checkpoint_activations: {}: expected one call for a module, found a second one",
          parameter.name);
  for (const std::string& pattern : patterns)
    if (std::ranges::all_of(parameters,
                            [&](const auto& one) { return block_of({pattern}, one).empty(); }))
      refuse(pattern, parameters);
  std::map<std::string_view, int> number;  // index among the modules that the patterns match
  for (const NamedParameter& parameter : parameters) {
    const std::string_view block = block_of(patterns, parameter);
    if (!block.empty()) number.emplace(block, static_cast<int>(number.size()));
  }
  auto state = std::make_shared<dispatch::ActivationCheckpointState>(
      std::set<std::string>(options.keep.begin(), options.keep.end()), options.offload);
  if (patterns.empty()) return ActivationCheckpoints(std::move(state));
  for (const NamedParameter& parameter : parameters) {
    const std::string_view block = block_of(patterns, parameter);
    const bool is_chosen = !block.empty() && number.at(block) % options.every == 0;
    dispatch::mark_block(parameter.tensor, state, is_chosen ? number.at(block) : -1);
    give_key(parameter.tensor);
  }
  return ActivationCheckpoints(std::move(state));
}

}  // namespace lockstep
