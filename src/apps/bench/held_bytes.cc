#include "apps/bench/held_bytes.h"

#include <lockstep/optim/state.h>
#include <torch/optim/adamw.h>

#include <set>

namespace lockstep::apps {

std::int64_t held_bytes(std::span<const at::Tensor> tensors) {
  std::set<const void*> seen;
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !seen.insert(tensor.storage().unsafeGetStorageImpl()).second) continue;
    bytes += static_cast<std::int64_t>(tensor.storage().nbytes());
  }
  return bytes;
}

std::vector<at::Tensor> adam_state(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  for (const auto& [parameter, state] : optimizer.state()) {
    if (const auto* adam = dynamic_cast<const torch::optim::AdamWParamState*>(state.get())) {
      tensors.push_back(adam->exp_avg());
      tensors.push_back(adam->exp_avg_sq());
    }
    if (const auto* beside = dynamic_cast<const optim::ExtraState*>(state.get()))
      tensors.push_back(beside->master_parameter);
  }
  return tensors;
}

}  // namespace lockstep::apps
