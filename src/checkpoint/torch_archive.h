// One archive of torch.save(): a whole .pt file, or a range of a larger one.
#pragma once

#include "checkpoint/zip_archive.h"
#include "sys/mapped_file.h"
#include "sys/plain_file.h"

#include <lockstep/checkpoint/torch_file.h>

#include <filesystem>
#include <memory>

namespace lockstep::checkpoint {

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
