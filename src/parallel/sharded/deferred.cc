#include <lockstep/parallel/sharded/deferred.h>

#include "parallel/sharded/deferred_values.h"

#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

namespace lockstep {

void make_values(torch::nn::Module& module) {
  c10::InferenceMode off(false);
  for (const at::Tensor& parameter : module.parameters()) sharded::make_ordinary(parameter);
  for (const at::Tensor& buffer : module.buffers()) sharded::make_ordinary(buffer);
}

}  // namespace lockstep
