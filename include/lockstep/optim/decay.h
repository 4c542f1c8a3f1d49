// Applies weight decay to matrices only, as is usual since GPT: biases and the gains of
// normalisation layers get no decay.
//
//   auto groups = optim::decay_groups(handle.named_parameters(), AdamWOptions(1e-3), 0.1);
//   optim::AdamW adamw(groups);
//
// The number of dimensions is taken from the whole parameter, because the slices of fully_shard()
// have a single dimension.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::optim {

// Returns two groups with `options`: parameters of at least two dimensions with this weight decay,
// and the other parameters without weight decay. `parameters` is the result of a handle's
// named_parameters(), or any list of structs with a `tensor` and, if the tensor is a part, its
// `slice` of the whole. Local.
template <class Named, class Options>
[[nodiscard]] std::vector<torch::optim::OptimizerParamGroup> decay_groups(
    const std::vector<Named>& parameters, const Options& options, double weight_decay) {
  std::vector<at::Tensor> matrices, others;
  for (const Named& parameter : parameters) {
    std::size_t dimensions = 0;
    if constexpr (requires { parameter.slice.sizes.size(); })
      dimensions = parameter.slice.sizes.size();
    else
      dimensions = parameter.tensor.sizes().size();
    (dimensions >= 2 ? matrices : others).push_back(parameter.tensor);
  }
  auto decayed = std::make_unique<Options>(options), kept = std::make_unique<Options>(options);
  decayed->weight_decay(weight_decay);
  kept->weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(matrices), std::move(decayed));
  groups.emplace_back(std::move(others), std::move(kept));
  return groups;
}

}  // namespace lockstep::optim

#pragma GCC visibility pop
