// Tensors to write, of which only one at a time has its values in memory.
#pragma once

#include "checkpoint/safetensors_header.h"

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep::sys {
class AtomicFile;
}

namespace lockstep::checkpoint {

struct TensorSource {
  at::ScalarType dtype{};
  std::vector<std::int64_t> sizes;
  std::function<at::Tensor()> values;  // of this dtype and these sizes; called once

  [[nodiscard]] std::uint64_t bytes() const;
};
using TensorSources = std::map<std::string, TensorSource>;

[[nodiscard]] TensorSources sources_of(const NamedTensors& tensors);

// Writes the content of a safetensors file, which the caller commits, and returns its header.
// Throws as write_safetensors().
SafetensorsHeader write_tensors(sys::AtomicFile& file, const TensorSources& tensors,
                                const Metadata& metadata, SafetensorsWriting how);

// Tensors whose memory can be written to a file unchanged: dense, in host memory, and not one of
// the lazy forms that LibTorch also calls contiguous: the conjugate or negative of the values in
// memory, or a tensor of zeros without memory.

[[nodiscard]] inline bool lies_as_in_file(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

// Returns the tensor itself if its memory has this form, else a copy.
[[nodiscard]] inline at::Tensor as_in_file(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.scalar_type());
  return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
}

}  // namespace lockstep::checkpoint
