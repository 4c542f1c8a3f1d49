// State dicts of whole tensors: assembled from the parts of all ranks, and cut into parts again.
#pragma once

#include "parallel/handle_state.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::parallel {

// Throws InvalidArgument with the name of a parameter that is sharded by fully_shard(), because
// `strategy` needs its values on every rank.
void check_not_sharded(const std::vector<NamedParameter>& parameters, std::string_view strategy);

[[nodiscard]] std::vector<Part> whole_parts(const std::vector<NamedParameter>& parameters);

// Knows the kind of each tensor of a module, for state_parts() (lockstep/parallel/handle.h).
class PartKinds {
 public:
  PartKinds(const torch::nn::Module& module, std::span<const std::string> ignored);

  // Returns a whole tensor of the module, without gradient.
  [[nodiscard]] Part whole_part(const NamedParameter& entry) const;

 private:
  std::unordered_map<const void*, PartKind> kinds_;  // of those that are not a plain parameter
};

// Returns all names of the whole, the first one first.
[[nodiscard]] std::vector<std::string> names_of(const Part& part);

// Implements state_parts() for a strategy whose ranks have the whole module.
[[nodiscard]] std::vector<Part> whole_state_parts(const torch::nn::Module& module,
                                                  std::span<const std::string> ignored = {});

// Returns a tensor without elements, for a part that is only described. It has the dtype and the
// kind of device of the elements.
[[nodiscard]] at::Tensor no_elements(c10::ScalarType dtype, c10::DeviceType device = c10::kCPU);

// Collective. Returns every rank's list, in rank order, with tensors as made by no_elements().
[[nodiscard]] std::vector<std::vector<Part>> exchange_parts(Group& group,
                                                            std::span<const Part> own);

// Collective. Returns the names that any rank has.
[[nodiscard]] std::set<std::string> names_of_all(Group& group, const std::set<std::string>& own);

// Handle::state_dict() and Handle::load_state_dict(). Local if every rank has all tensors, else
// collective over the group of the handle. Throws InvalidArgument on every rank if ranks describe a
// tensor differently, or together lack some of its elements.
[[nodiscard]] std::map<std::string, at::Tensor> get_model_state_dict(HandleState& state);
void set_model_state_dict(const std::shared_ptr<HandleState>& state,
                          const std::map<std::string, at::Tensor>& tensors);

}  // namespace lockstep::parallel
