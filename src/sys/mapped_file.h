// A file mapped into memory. Pages are loaded on access and the system can drop them again, so a
// file may be larger than memory. Reading after the file was truncated raises SIGBUS.
#pragma once

#include "sys/file_descriptor.h"

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

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {memory_.get(), memory_ ? memory_.get_deleter().bytes : 0};
  }

 private:
  MappedMemory memory_;
};

// Memory backed by a file without a name: pages are loaded on access, and written back to disk when
// they are released or when memory is short. The file disappears when the process ends, in any way.
//
// All disk space of the file is reserved at creation, so that a full disk fails then, rather than
// with a SIGBUS later.
class ReservedFile {
 public:
  ReservedFile() = default;
  // Creates zeroed memory in a file in `folder`. Throws SystemError, which names the folder, if the
  // folder does not exist, is not writable or is full; nothing is left then. With 0 bytes no file
  // is created.
  ReservedFile(const std::filesystem::path& folder, std::size_t bytes);

  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::size_t bytes() const { return memory_ ? memory_.get_deleter().bytes : 0; }

 private:
  MappedMemory memory_;
};

// Sets the size of a new file and allocates its disk space with zeros, so that it can be mapped.
// Returns 0 or an error number.
[[nodiscard]] int take_space(int file, std::size_t bytes);

// Advises the kernel that the range will be used soon; the kernel reads it in the background. Has
// no effect on the contents.
void fetch_ahead(const void* begin, std::size_t bytes) noexcept;
// Advises the kernel that the range will not be used for a while: its whole pages leave the
// process, and their contents stay in the file.
void let_go(const void* begin, std::size_t bytes) noexcept;

}  // namespace lockstep::sys
