// What a checkpoint remembers of the data that its run learned from.
#pragma once

#include "base/format.h"

#include "checkpoint/checksum.h"

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>

namespace lockstep::train {

// "1115394 elements, crc32 1a2b3c4d" of the tensors' bytes one behind another.
[[nodiscard]] inline std::string fingerprint_of_tensors(std::initializer_list<at::Tensor> tensors) {
  std::int64_t elements = 0;
  std::uint32_t checksum = 0;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor dense = tensor.contiguous();
    elements += dense.numel();
    checksum = checkpoint::crc32_of(
        {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()}, checksum);
  }
  return formatted("{} elements, crc32 {:08x}", elements, checksum);
}

}  // namespace lockstep::train
