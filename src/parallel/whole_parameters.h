// What handles do alike with tensors that are the module's own, all of each on every rank.
#pragma once

#include "module/state_entries.h"

#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/handle.h>

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::parallel {

// InvalidArgument names a parameter that fully_shard() has divided, whose values `strategy` would
// need on every rank.
void check_not_sharded(const std::vector<NamedParameter>& parameters, std::string_view strategy);

[[nodiscard]] std::vector<NamedPart> whole_parts(const std::vector<NamedParameter>& parameters);

// Handle::zero_grad() of one parameter. A gradient that the program holds keeps its values.
void zero_gradient(const at::Tensor& parameter, bool set_to_none);

// The bytes of whole tensors, shards and gradients.
[[nodiscard]] HandleMemory memory_of(const std::vector<NamedPart>& parameters);

// Of which kind each of a module's tensors is, for state_parts() (lockstep/parallel/handle.h).
class PartKinds {
 public:
  PartKinds(const torch::nn::Module& module, std::span<const std::string> ignored);

  // All of one of the module's tensors, without gradient.
  [[nodiscard]] NamedPart whole_part(const modules::StateEntry& entry) const;

 private:
  std::unordered_map<const void*, PartKind> kinds_;  // of those that are not a plain parameter
};

// state_parts() of a strategy whose ranks have all of the module.
[[nodiscard]] std::vector<NamedPart> whole_state_parts(const torch::nn::Module& module,
                                                       std::span<const std::string> ignored = {});

}  // namespace lockstep::parallel
