// A file mapped into memory. Pages are loaded on access and the system can drop them again, so a
// file may be larger than memory. Reading after the file was truncated raises SIGBUS.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace lockstep::sys {

class PlainFile;

class MappedFile {
 public:
  MappedFile() = default;
  // Maps the file read-only. Throws SystemError if the file cannot be opened or mapped. An empty
  // file is an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  // Maps the file copy-on-write: changes stay in this process, and take its memory.
  [[nodiscard]] static MappedFile private_copy(const PlainFile& file);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace lockstep::sys
