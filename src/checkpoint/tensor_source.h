// Tensors to write, of which only one at a time has its values in memory.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>

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

// Writes the content of a safetensors file, which the caller commits. Throws as
// write_safetensors().
void write_tensors(sys::AtomicFile& file, const TensorSources& tensors, const Metadata& metadata,
                   SafetensorsWriting how);

}  // namespace lockstep::checkpoint
