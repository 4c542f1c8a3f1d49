// A file's bytes as memory. Pages come in when they are touched and can be dropped again by the
// system, so a file may be larger than the memory. Shorten the file while it is mapped and reading
// it is a SIGBUS.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace lockstep::sys {

class PlainFile;

class MappedFile {
 public:
  MappedFile() = default;
  // Read-only. SystemError when it cannot be opened or mapped. An empty file is an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  // Memory that may be written too: what is written stays in this process, and takes its memory.
  [[nodiscard]] static MappedFile private_copy(const PlainFile& file);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace lockstep::sys
