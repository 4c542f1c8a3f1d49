// One archive of torch.save(): a whole .pt file, or a range of a larger one.
#pragma once

#include "sys/mapped_file.h"
#include "sys/plain_file.h"

#include <lockstep/checkpoint/torch_file.h>

#include <cstdint>
#include <filesystem>
#include <memory>

namespace lockstep::checkpoint {

// A range of a file.
struct FileRange {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

// An open file, kept alive by tensors that are mapped to it.
struct TorchSource {
  TorchSource(const std::filesystem::path& path, TorchReading how);

  sys::PlainFile file;
  TorchReading how;
  sys::MappedFile mapped;  // empty unless how.map
};

// Throws BadInput without naming the file.
[[nodiscard]] c10::IValue read_archive(const std::shared_ptr<const TorchSource>& source,
                                       FileRange range);

}  // namespace lockstep::checkpoint
