// A file that a user named, opened for reading: whatever reads data, checkpoints, settings or
// records goes through here.
#pragma once

#include "sys/file_descriptor.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace lockstep::sys {

// Behind links too, only a plain file is opened. A pipe, a device, a socket or a folder, where
// open() and read() may wait for ever or never come to an end, is refused at once with BadInput:
// "reading PATH: expected a file, found a named pipe". SystemError when it is not there, must not
// be read, or the disk fails.
class PlainFile {
 public:
  explicit PlainFile(std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // When it was opened; 0 for what the kernel makes up while it is read (/proc).
  [[nodiscard]] std::uint64_t size() const { return size_; }

  // Fills `bytes` from where the last call ended; returns how many were there, fewer only at the
  // file's end.
  std::size_t read(std::span<std::byte> bytes);

  // The same from `offset` on, without regard to what read() has read; any thread.
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> bytes) const;

  // For calls of the system on the open file.
  [[nodiscard]] int descriptor() const { return file_.get(); }

  // Equal where several processes, also of several hosts, have opened one file, and not where they
  // have copies of it. SystemError.
  [[nodiscard]] std::string identity() const;

  // For a reader that brings its own buffers; nothing must have been read yet.
  [[nodiscard]] FileDescriptor release() { return std::move(file_); }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

// Whether other hosts may see an open file too: all but the filesystems that are known to be of one
// host. There a lock need not reach from host to host.
[[nodiscard]] bool may_be_of_several_hosts(int file);

// The whole content. BadInput when that is more than `most_bytes`, also when the file grows.
[[nodiscard]] std::string read_plain_file(const std::filesystem::path& path,
                                          std::uint64_t most_bytes);

// Throws BadInput when `bytes`, which `path` would take in memory, are more than `share` of what
// the machine or its control group has. (Where memory is overcommitted, an allocation of more
// succeeds, and the kernel ends the process when it is used.)
void check_fits_memory(const std::filesystem::path& path, std::uint64_t bytes, double share = 1);

}  // namespace lockstep::sys
