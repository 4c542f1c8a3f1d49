// OwnCopies: the handle of strategies whose ranks train their own copies (LocalSgd, DiLoCo): equal
// at the beginning, without communication in backward().
#pragma once

#include "parallel/whole_module_state.h"

#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/module/named_parameters.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::data_parallel {

class OwnCopies : public parallel::WholeModuleState {
 public:
  // Collective. `options`: one line per option, equal on all ranks.
  OwnCopies(const ModuleRef& module, const Ranks& ranks, const std::string& strategy,
            std::vector<std::string> options, std::optional<Duration> timeout);

  [[nodiscard]] std::optional<Mesh> mesh() const override { return mesh_; }

 protected:
  const std::shared_ptr<torch::nn::Module> module_;
  const std::optional<Mesh> mesh_;
  std::vector<NamedParameter> parameters_;
};

}  // namespace lockstep::data_parallel
