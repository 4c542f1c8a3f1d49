#include "train/tasks/tensor_checks.h"

#include "base/check.h"
#include "base/text.h"

#include <algorithm>

namespace lockstep::train {

std::int64_t size_in(const checkpoint::NamedTensors& tensors, const std::string& name,
                     std::size_t dim) {
  auto found = tensors.find(name);
  check_input(found != tensors.end(), "expected a tensor {}, found none", name);
  check_input(found->second.dim() == 2, "tensor {}: expected two dims, found {}", name,
              found->second.dim());
  return found->second.size(static_cast<std::int64_t>(dim));
}

std::int64_t count_layers(const checkpoint::NamedTensors& tensors, std::string_view prefix,
                          std::string_view suffix) {
  return std::ranges::count_if(tensors, [&](const auto& item) {
    const std::string& name = item.first;
    return name.starts_with(prefix) && name.ends_with(suffix) &&
           name.size() > prefix.size() + suffix.size() &&
           parse_integer(std::string_view(name).substr(
               prefix.size(), name.size() - prefix.size() - suffix.size()));
  });
}

void check_entry(std::string_view entry, std::int64_t told, std::int64_t found) {
  check_input(told == found, "metadata: {}: {} contradicts the tensors, which are for {}", entry,
              told, found);
}

void check_elements(const checkpoint::NamedTensors& tensors, double elements) {
  double found = 0;
  for (const auto& [name, tensor] : tensors) found += static_cast<double>(tensor.numel());
  check_input(2 * found >= elements,
              "metadata: layers and width: a model of them has {} elements or more, the tensors "
              "have {}",
              elements, found);
}

}  // namespace lockstep::train
