#include <lockstep/shard/named_parameters.h>

#include <torch/nn/module.h>

#include <unordered_map>

namespace lockstep::shard {

std::vector<NamedParameter> unique_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> unique;
  std::unordered_map<const void*, std::size_t> seen;
  for (const auto& item : module.named_parameters()) {
    auto [found, is_new] = seen.emplace(item.value().unsafeGetTensorImpl(), unique.size());
    if (is_new) {
      unique.push_back({item.key(), item.value(), {}});
    } else {
      unique[found->second].aliases.push_back(item.key());
    }
  }
  return unique;
}

TensorSpec spec_of(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  return {parameter.name, tensor.sizes().vec(), tensor.scalar_type(), tensor.unsafeGetTensorImpl()};
}

}  // namespace lockstep::shard
