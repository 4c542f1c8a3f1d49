// CompositeState: the handle of a strategy that is made of others. It asks each of their handles.
#pragma once

#include "parallel/handle_state.h"

#include <lockstep/optim/update_options.h>

#include <torch/nn/module.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::parallel {

// The memory for the state of one optimizer if several handles of this rank offload their state.

// Combines the memories: state is allocated in the first one, and advice goes to each. Null
// memories are left out. Returns null if all are null.
[[nodiscard]] std::shared_ptr<optim::StateMemory> one_of(
    std::vector<std::shared_ptr<optim::StateMemory>> memories);

class CompositeState : public HandleState {
 public:
  // `ranks` and `mesh`: those of all children together, for group() and mesh().
  explicit CompositeState(Group ranks, std::optional<Mesh> mesh = {})
      : ranks_(std::move(ranks)), mesh_(std::move(mesh)) {}

  // Derived classes then release the handles that they own.
  void detach() override { children_.clear(); }

  // The parts of all children, child by child.
  [[nodiscard]] std::vector<Part> named_parameters() const override;
  [[nodiscard]] std::vector<Part> state_parts() override;

  void zero_grad(bool set_to_none) override;
  void set_requires_gradient_sync(bool on) override;
  void begin_load() override;
  void end_load(bool complete) override;
  void check_one_model() const override;
  [[nodiscard]] HandleMemory memory() const override;
  [[nodiscard]] std::shared_ptr<optim::StateMemory> state_memory() const override;
  [[nodiscard]] double seconds_waited() const override;
  [[nodiscard]] const Group& group() const override { return ranks_; }
  [[nodiscard]] std::optional<Mesh> mesh() const override { return mesh_; }

 protected:
  // While this is made. The derived class owns `child`, until detach().
  void add_child(const Handle& child);
  [[nodiscard]] bool has_children() const { return !children_.empty(); }

 private:
  const Group ranks_;
  const std::optional<Mesh> mesh_;
  std::vector<HandleState*> children_;
};

// SeparateParts: the handle of a module whose tensors are divided among several handles, such as a
// stage whose experts are trained apart from its other tensors.
class SeparateParts final : public CompositeState {
 public:
  // `handles`: the first one knows all ranks; each knows its tensors by their names in `module`.
  SeparateParts(const torch::nn::Module& module, std::vector<Handle> handles);

  void detach() override;
  // Returns the parts in the order of the module, with all names.
  [[nodiscard]] std::vector<Part> named_parameters() const override;
  [[nodiscard]] std::vector<Part> state_parts() override;
  [[nodiscard]] StepTiming timing() const override { return handles_.front().timing(); }

 private:
  [[nodiscard]] std::vector<Part> in_order(std::vector<Part> parts) const;

  std::vector<Handle> handles_;
  std::vector<std::vector<std::string>> names_;  // of each tensor, in the module's order
  std::map<std::string, std::size_t> place_;     // in names_, by each name
};

// Returns the handle if there is only one; otherwise a handle that combines them.
[[nodiscard]] Handle joined(const torch::nn::Module& module, std::vector<Handle> handles);

}  // namespace lockstep::parallel
