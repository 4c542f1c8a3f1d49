// OwnCopies: the handle of strategies whose ranks train copies of their own (LocalSgd, DiLoCo):
// equal at the beginning, no communication in backward().
#pragma once

#include "parallel/whole_module_state.h"

#include <lockstep/module/named_parameters.h>

#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::data_parallel {

class OwnCopies : public parallel::WholeModuleState {
 public:
  // Collective. `options`: a line each, equal on all ranks.
  OwnCopies(torch::nn::Module& module, Group group, const std::string& strategy,
            std::vector<std::string> options, std::optional<Duration> timeout);

 protected:
  std::vector<NamedParameter> parameters_;
};

}  // namespace lockstep::data_parallel
