#include "parallel/whole_module_state.h"

#include "module/tensors.h"
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
