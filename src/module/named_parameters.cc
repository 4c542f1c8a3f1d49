#include <lockstep/module/named_parameters.h>

#include <torch/nn/module.h>

#include <unordered_map>

namespace lockstep {

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

}  // namespace lockstep
