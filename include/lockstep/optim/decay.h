// Weight decay for matrices alone, as GPT and most others since are trained with it: biases and the
// gains of normalisation are left as they are.
//
//   auto groups = optim::decay_groups(handle.named_parameters(), AdamWOptions(1e-3), 0.1);
//   optim::AdamW adamw(groups);
//
// What has two dimensions is asked of the whole parameters: a handle of fully_shard() gives slices,
// which have one.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::optim {

// `parameters`: what a handle's named_parameters() returns, or anything else with `tensor` and,
// where that is a part, the `slice` of the whole. Two groups with `options`: those of at least two
// dimensions with this weight decay, and the others with none. Local.
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
