// A file that several processes write or read side by side, each at places of its own. Every call
// blocks on the disk. Errors: SystemError that names the path.
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
  // A new one, for writing.
  [[nodiscard]] static PositionedFile create(std::filesystem::path path);
  // One that is there, for writing. Not open afterwards when there is none of that name.
  [[nodiscard]] static PositionedFile open_to_write(std::filesystem::path path);

  [[nodiscard]] bool is_open() const { return static_cast<bool>(file_); }
  // Gives an empty file so many bytes, reserved on the disk where the filesystem can do that: a
  // full disk is an error now.
  void reserve(std::uint64_t bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Blocks until what was written has reached the disk.
  void flush();

 private:
  PositionedFile(std::filesystem::path path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace lockstep::sys
