#include "parallel/whole_module_state.h"

#include "base/check.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/bucket.h"
#include "parallel/state_dict.h"

#include <torch/nn/module.h>

#include <utility>

namespace lockstep::parallel {

WholeModuleState::WholeModuleState(Group group, std::vector<Part> trained, ListParts list,
                                   Holds holds)
    : HandleState(holds),
      group_(std::move(group)),
      trained_(std::move(trained)),
      list_(std::move(list)) {
  aborts(group_);
}

WholeModuleState::WholeModuleState(const torch::nn::Module& module, Group group,
                                   std::vector<std::string> ignored)
    : WholeModuleState(std::move(group),
                       whole_parts(modules::tensors_of(module, ignored).parameters),
                       [&module, ignored] { return whole_state_parts(module, ignored); }) {}

void WholeModuleState::zero_grad(bool set_to_none) {
  for (const Part& part : trained_) zero_gradient(part.tensor, set_to_none);
}

HandleMemory WholeModuleState::memory() const { return memory_of(trained_); }

}  // namespace lockstep::parallel

namespace lockstep::data_parallel {
namespace {

constexpr std::int64_t bytes_at_once = std::int64_t{25} << 20;

}  // namespace

OwnCopies::OwnCopies(const ModuleRef& module, const Ranks& ranks, const std::string& strategy,
                     std::vector<std::string> options, std::optional<Duration> timeout)
    : WholeModuleState(*module.shared(strategy), ranks.group()),
      module_(module.shared(strategy)),
      mesh_(ranks.mesh()) {
  CallOptions call{.tag = strategy, .timeout = timeout};
  modules::ModuleTensors tensors = modules::tensors_of(*module_);
  std::vector<std::string> lines = std::move(options);
  for (std::string& line : modules::lines_of(tensors)) lines.push_back(std::move(line));
  modules::check_same_lines(group_, lines, call);
  modules::check_ordinary(tensors, strategy);
  parallel::check_not_sharded(tensors.parameters, strategy);
  parameters_ = tensors.parameters;
  std::vector<at::Tensor> state = tensors.buffer_tensors();
  for (const NamedParameter& parameter : parameters_) state.push_back(parameter.tensor);
  parallel::broadcast_now(group_, state, bytes_at_once, call);
}

}  // namespace lockstep::data_parallel
