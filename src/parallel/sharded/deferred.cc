#include <lockstep/parallel/sharded/deferred.h>

#include "base/format.h"
#include "parallel/sharded/deferred_values.h"
#include "parallel/state_broadcast.h"

#include <lockstep/dispatch/deferral.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>

namespace lockstep {

void make_values(torch::nn::Module& module) {
  c10::InferenceMode off(false);
  for (const at::Tensor& parameter : module.parameters()) sharded::make_ordinary(parameter);
  for (const at::Tensor& buffer : module.buffers()) sharded::make_ordinary(buffer);
}

}  // namespace lockstep

namespace lockstep::sharded {

std::vector<at::Tensor> deferred_among(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> deferred;
  std::ranges::copy_if(tensors, std::back_inserter(deferred), dispatch::is_deferred);
  return deferred;
}

std::vector<std::string> deferred_lines(const torch::nn::Module& module) {
  std::vector<std::string> lines;
  auto add = [&](const auto& items) {
    for (const auto& item : items)
      if (dispatch::is_deferred(item.value()))
        lines.push_back(formatted("deferred {}", item.key()));
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return lines;
}

void give_values(const Group& group, const std::vector<at::Tensor>& deferred,
                 std::int64_t bucket_bytes, const CallOptions& call) {
  for (const at::Tensor& tensor : deferred) {
    if (group.is_root()) {
      dispatch::give_values(tensor);
    } else {
      dispatch::give_memory(tensor);
    }
  }
  parallel::broadcast_now(group, deferred, bucket_bytes, call);
}

void make_ordinary(const at::Tensor& tensor) {
  if (!dispatch::is_deferred(tensor)) return;
  at::NoGradGuard no_grad;
  tensor.set_data(dispatch::as_ordinary(tensor));
}

}  // namespace lockstep::sharded
