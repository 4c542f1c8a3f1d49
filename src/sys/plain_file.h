// A file that the user has named, opened for reading. All readers of data, checkpoints, settings
// and records use this class.
#pragma once

#include "sys/file_descriptor.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace lockstep::sys {

// Opens regular files only, also behind links. A pipe, device, socket or folder, on which open() or
// read() may block forever or never end, throws BadInput immediately: "reading PATH: expected a
// file, found a named pipe". Throws SystemError if the file does not exist, cannot be read, or the
// disk fails.
class PlainFile {
 public:
  explicit PlainFile(std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Returns the size at opening; 0 for files that the kernel generates on reading (/proc).
  [[nodiscard]] std::uint64_t size() const { return size_; }

  // Fills `bytes` from the position at which the last call ended. Returns the number of bytes read,
  // which is smaller than requested only at the end of the file.
  std::size_t read(std::span<std::byte> bytes);

  // Like read(), but from `offset` and independent of the position. Thread-safe.
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> bytes) const;

  // Returns the open descriptor for system calls.
  [[nodiscard]] int descriptor() const { return file_.get(); }

  // Returns a text that identifies the file: equal in all processes, on all hosts, that opened the
  // same file, and different for a copy of the file. Throws SystemError.
  [[nodiscard]] std::string identity() const;

  // Gives up the descriptor, for a reader with its own buffers. Nothing must have been read yet.
  [[nodiscard]] FileDescriptor release() { return std::move(file_); }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

// Returns what a path that is no regular file leads to, for messages: "a folder", "a named pipe".
[[nodiscard]] std::string_view kind_of(mode_t mode);

// Returns true if other hosts may access the same open file: true for all filesystems except known
// local ones. On such filesystems a lock may not exclude other hosts.
[[nodiscard]] bool may_be_of_several_hosts(int file);

// Returns the whole content. Throws BadInput if the file is larger than `most_bytes`, even if it
// grows during the call.
[[nodiscard]] std::string read_plain_file(const std::filesystem::path& path,
                                          std::uint64_t most_bytes);

// Throws BadInput if `bytes`, the memory that loading `path` takes, exceed `share` of the memory of
// this host or its control group. (With overcommit such an allocation succeeds, and the kernel
// kills the process when it uses the memory.)
void check_fits_memory(const std::filesystem::path& path, std::uint64_t bytes, double share = 1);

// Recognises files of well-known formats by their first bytes, for readers of formats without a
// magic number.

inline constexpr std::size_t file_kind_bytes = 512;

inline constexpr std::string_view safetensors_kind = "a safetensors file";

// Returns the name of the format for messages, such as "an array of NumPy (.npy)", or an empty
// string if the format is unknown. `begin` holds the first file_kind_bytes of a file of `size`
// bytes, or all of it. Each test checks enough bytes that a file of numbers does not match by
// chance.
[[nodiscard]] std::string_view file_kind(std::string_view begin, std::uint64_t size);

}  // namespace lockstep::sys
