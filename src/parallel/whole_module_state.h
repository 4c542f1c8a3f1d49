// WholeModuleState: the handle of a strategy whose ranks have all of the module, or of tensors that
// no strategy trains.
#pragma once

#include "parallel/handle_state.h"

#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/module/named_parameters.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::parallel {

class WholeModuleState : public HandleState {
 public:
  using ListParts = std::function<std::vector<Part>()>;

  // `trained`: the parameters of an optimizer. `list` returns the parts to save and load.
  WholeModuleState(Group group, std::vector<Part> trained, ListParts list,
                   Holds holds = Holds::wholes);
  // All parameters and buffers of a module, which outlives the handle; `ignored`: patterns.
  explicit WholeModuleState(const torch::nn::Module& module, Group group = Group(),
                            std::vector<std::string> ignored = {});

  void detach() override {}
  [[nodiscard]] std::vector<Part> named_parameters() const override { return trained_; }
  void zero_grad(bool set_to_none) override;
  void set_requires_gradient_sync(bool) override {}
  [[nodiscard]] std::vector<Part> state_parts() override { return list_(); }
  [[nodiscard]] HandleMemory memory() const override;
  [[nodiscard]] double seconds_waited() const override { return waits_->seconds(); }
  [[nodiscard]] const Group& group() const override { return group_; }

  [[nodiscard]] WaitTime& waits() { return *waits_; }

 protected:
  Group group_;
  const std::shared_ptr<WaitTime> waits_ = std::make_shared<WaitTime>();

 private:
  std::vector<Part> trained_;
  const ListParts list_;
};

}  // namespace lockstep::parallel

namespace lockstep::data_parallel {

// OwnCopies: the handle of strategies whose ranks train their own copies (LocalSgd, DiLoCo): equal
// at the beginning, without communication in backward().
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
