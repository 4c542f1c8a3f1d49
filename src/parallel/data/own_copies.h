// OwnCopies: the handle of strategies whose ranks train copies of their own (LocalSgd, DiLoCo):
// equal at the beginning, no communication in backward().
#pragma once

#include "parallel/handle_state.h"

#include <lockstep/module/named_parameters.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::data_parallel {

class OwnCopies : public HandleState {
 public:
  // Collective. `options`: a line each, equal on all ranks.
  OwnCopies(torch::nn::Module& module, Group group, const std::string& strategy,
            std::vector<std::string> options, std::optional<Duration> timeout);

  void detach() override {}
  [[nodiscard]] std::vector<NamedPart> named_parameters() const override;
  void zero_grad(bool set_to_none) override;
  void set_requires_gradient_sync(bool) override {}
  [[nodiscard]] std::vector<NamedPart> state_parts() override;
  [[nodiscard]] HandleMemory memory() const override;
  [[nodiscard]] const Group& group() const override { return group_; }

 protected:
  torch::nn::Module& module_;
  Group group_;
  std::vector<NamedParameter> parameters_;
};

}  // namespace lockstep::data_parallel
