// PartsHandle: a Handle on tensors that it does not own, for what is saved and loaded through
// one (lockstep/checkpoint/checkpoint.h).
#pragma once

#include "parallel/handle_state.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/handle.h>

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

// `trained`: what an optimizer updates on this rank; `all`: these and the others that this rank
// saves. Both are there as long as the handle.
class PartsState : public HandleState {
 public:
  PartsState(Group group, std::vector<NamedPart> trained, std::vector<NamedPart> all)
      : group_(std::move(group)), trained_(std::move(trained)), all_(std::move(all)) {}

  void detach() override {}
  [[nodiscard]] std::vector<NamedPart> named_parameters() const override { return trained_; }
  void zero_grad(bool) override {
    for (NamedPart& part : trained_) part.tensor.mutable_grad().reset();
  }
  // backward() only accumulates in any case.
  void set_requires_gradient_sync(bool) override {}
  [[nodiscard]] std::vector<NamedPart> state_parts() override { return all_; }
  [[nodiscard]] HandleMemory memory() const override {
    HandleMemory memory;
    for (const NamedPart& part : trained_) {
      memory.whole += static_cast<std::int64_t>(part.tensor.nbytes());
      const at::Tensor& gradient = part.tensor.grad();
      if (gradient.defined()) memory.gradients += static_cast<std::int64_t>(gradient.nbytes());
    }
    return memory;
  }
  [[nodiscard]] double seconds_waited() const override { return seconds_waited_; }
  [[nodiscard]] const Group& group() const override { return group_; }

  void add_wait(double seconds) { seconds_waited_ += seconds; }

 private:
  const Group group_;
  std::vector<NamedPart> trained_, all_;
  double seconds_waited_ = 0;
};

// What an optimizer updates of a module that this rank has all of.
[[nodiscard]] inline std::vector<NamedPart> trained_parts(const torch::nn::Module& module) {
  std::vector<NamedPart> parts;
  for (const auto& [name, tensor, aliases] : unique_parameters(module))
    if (tensor.requires_grad())
      parts.push_back({name, tensor, aliases, layout::whole_slice(tensor.sizes())});
  return parts;
}

struct PartsHandle : Handle {
  explicit PartsHandle(std::shared_ptr<PartsState> state) : Handle(std::move(state)) {}
};

}  // namespace lockstep::train
