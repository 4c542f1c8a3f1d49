#include <lockstep/models/generate.h>

#include "base/scope_exit.h"

#include <lockstep/base/error.h>
#include <lockstep/global/tensor.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace lockstep::models {
namespace {

// Sets all except the k largest logits of a row to -inf.
at::Tensor only_largest(const at::Tensor& logits, std::int64_t k) {
  const at::Tensor largest = std::get<0>(logits.topk(std::min(k, logits.size(-1)), -1));
  return logits.masked_fill(logits < largest.narrow(-1, largest.size(-1) - 1, 1),
                            -std::numeric_limits<double>::infinity());
}

// Returns the device of the model's first parameter.
c10::Device device_of(const torch::nn::Module& model) {
  const std::vector<at::Tensor> parameters = model.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

at::Tensor draw(at::Tensor logits, const GenerateOptions& options) {
  // Sample on the generator's device: a generator only fills tensors there. With a CPU generator,
  // the text is the same for models on any device.
  if (options.generator) logits = logits.to(options.generator->device());
  if (options.temperature == 0) return logits.argmax(-1, /*keepdim=*/true);
  logits = logits / options.temperature;
  if (options.top_k > 0) logits = only_largest(logits, options.top_k);
  return at::multinomial(at::softmax(logits, -1), 1, /*replacement=*/false, options.generator);
}

}  // namespace

at::Tensor generate_tokens(torch::nn::Module& model, at::Tensor ids, std::int64_t count,
                           std::int64_t block, const GenerateOptions& options,
                           const NextLogits& next_logits) {
  if (ids.dim() != 2 || ids.size(1) < 1)
    throw InvalidArgument(
        c10::str("generate: expected ids of [rows, one token or more], found ", ids.sizes()));
  if (!(options.temperature >= 0) || options.top_k < 0)
    throw InvalidArgument(c10::str("generate: expected temperature and top_k >= 0, found ",
                                   options.temperature, " and ", options.top_k));
  c10::NoGradGuard no_grad;
  // A module precedes its submodules in this list, and train() also changes these.
  const auto submodules = model.modules(/*include_self=*/false);
  std::vector<bool> were_training = {model.is_training()};
  for (const auto& module : submodules) were_training.push_back(module->is_training());
  model.eval();
  ScopeExit modes_as_before([&] {
    model.train(were_training[0]);
    for (std::size_t i = 0; i < submodules.size(); ++i) submodules[i]->train(were_training[i + 1]);
  });
  const c10::Device device = device_of(model);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t seen = options.beyond_block ? ids.size(1) : std::min(ids.size(1), block);
    at::Tensor logits = next_logits(ids.narrow(1, ids.size(1) - seen, seen).to(device));
    // under tensor parallelism each rank has a part
    if (is_global(logits)) logits = full_tensor(logits);
    ids = at::cat({ids, draw(logits, options).to(ids.device())}, /*dim=*/1);
  }
  return ids;
}

}  // namespace lockstep::models
