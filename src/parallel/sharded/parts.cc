#include "parallel/sharded/parts.h"

#include "base/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace lockstep::sharded {
namespace {

// The elements of a tensor that empty_strided() made without holes, in the order of memory.
at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

at::Tensor laid_flat(const Unit& unit, const std::vector<at::Tensor>& parts,
                     const at::TensorOptions& options) {
  at::Tensor flat = at::zeros({unit.range().length()}, options);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const layout::FlatSlice& owned = unit.owned()[i];
    check(!parts[i].defined() || parts[i].numel() == owned.of_tensor.length(),
          "gather_parts: {}: expected {} elements, as its slice has, found {}",
          unit.parameters()[i].name, owned.of_tensor.length(),
          parts[i].defined() ? parts[i].numel() : 0);
    if (parts[i].defined())
      flat.narrow(0, owned.offset, owned.of_tensor.length()).copy_(parts[i].reshape({-1}));
  }
  return flat;
}

}  // namespace

std::vector<at::Tensor> gather_parts(const Unit& unit, Group& shards,
                                     const std::vector<at::Tensor>& parts) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> wholes(parts.size());
  auto first = std::ranges::find_if(parts, [](const at::Tensor& part) { return part.defined(); });
  if (first == parts.end()) return wholes;
  at::TensorOptions options = at::TensorOptions(first->scalar_type()).device(first->device());
  at::Tensor own = laid_flat(unit, parts, options);
  at::Tensor flat = shards.is_root() ? at::empty({unit.layout().numel()}, options) : at::Tensor();
  CallOptions call{.tag = unit.name(), .timeout = unit.settings().timeout};
  shards.gather(flat, own, 0, call).wait();
  if (!shards.is_root()) return wholes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) continue;
    const layout::FlatEntry& entry = unit.layout().entry(static_cast<int>(i));
    wholes[i] = at::empty_strided(entry.sizes, unit.strides(static_cast<int>(i)), options);
    in_memory_order(wholes[i]).copy_(flat.narrow(0, entry.offset, entry.numel));
  }
  return wholes;
}

}  // namespace lockstep::sharded
