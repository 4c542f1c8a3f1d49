// PartsNode: the node of autograd between a module's parameter, which is a global tensor, and the
// leaves that hold this rank's part of it.
//
// It stays for as long as the parameter does, and saves nothing, so every graph has it. As with
// LibTorch's own accumulation of gradients its sequence number is the highest one: it runs as soon
// as its gradient is complete.
#pragma once

#include "dispatch/part_record.h"
#include "parallel/tensor/gradient_marks.h"

#include <lockstep/global/placement.h>

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::tensor_parallel {

struct PartedTensor;

class PartsNode final : public torch::autograd::Node {
 public:
  PartsNode(const PartedTensor& parted, std::shared_ptr<GradientMarks> marks, std::size_t number);

  // Collective where the gradient has other placements than the parameter.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "lockstep::PartsNode"; }

 private:
  const std::string parameter_;
  const Placements placements_;
  const int context_ranks_;
  std::vector<std::int64_t> counts_;  // elements of each leaf; empty: there is one with all of them
  dispatch::PartRecord::List parts_;  // null: the gradients of leaves are no parts
  std::shared_ptr<GradientMarks> marks_;
  const std::size_t number_;
};

}  // namespace lockstep::tensor_parallel
