#include "checkpoint/own_tensors.h"

#include "base/check.h"
#include "base/visible.h"

#include <ATen/ops/empty.h>

namespace lockstep::checkpoint {

std::string prefix_of(int rank) { return formatted("rank{}.", rank); }

std::vector<FilePart> own_parts(const std::map<std::string, at::Tensor>& own, int rank) {
  std::vector<FilePart> parts;
  for (const auto& [name, tensor] : own) {
    check(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized(),
          "SaveOptions::own: {}: expected a dense tensor, found {}", visible(name),
          tensor.defined() ? tensor.toString() : "an undefined one");
    parts.push_back({.part = {.name = prefix_of(rank) + name,
                              .tensor = no_elements(tensor.scalar_type()),
                              .slice = layout::whole_slice(tensor.sizes())},
                     .values = [values = tensor.detach()] { return values; }});
  }
  return parts;
}

std::map<std::string, at::Tensor> read_own(PartsReader& file) {
  const std::string prefix = prefix_of(file.group().rank());
  std::map<std::string, at::Tensor> own;
  std::vector<Part> parts;
  together(file.group(), [&] {
    for (const TensorEntry& entry : file.entries()) {
      if (!entry.name.starts_with(prefix)) continue;
      at::Tensor tensor = at::empty(entry.shape, entry.dtype);
      parts.push_back(
          {.name = entry.name, .tensor = tensor, .slice = layout::whole_slice(entry.shape)});
      own.emplace(entry.name.substr(prefix.size()), std::move(tensor));
    }
  });
  file.read(parts);
  return own;
}

}  // namespace lockstep::checkpoint
