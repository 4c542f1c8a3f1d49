// A file that several processes write or read concurrently, each at its own offsets. Every call
// blocks on disk I/O. Throws SystemError, which names the path.
#pragma once

#include "sys/file_descriptor.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep::sys {

class PositionedFile {
 public:
  PositionedFile() = default;
  // Creates a new file for writing.
  [[nodiscard]] static PositionedFile create(std::filesystem::path path);
  // Opens an existing file for writing. If there is no such file, the result is not open.
  [[nodiscard]] static PositionedFile open_to_write(std::filesystem::path path);

  [[nodiscard]] bool is_open() const { return static_cast<bool>(file_); }
  // Sets the length of an empty file, and reserves the space on disk if the filesystem supports it.
  // A full disk then fails here rather than later.
  void reserve(std::uint64_t bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Blocks until all written bytes are on disk.
  void flush();

 private:
  PositionedFile(std::filesystem::path path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace lockstep::sys
