// Memory without a name that several processes map: a memfd, passed on by its descriptor. It ends
// with its last mapping and descriptor, however the processes end.
#pragma once

#include "sys/file_descriptor.h"

#include <cstddef>
#include <cstdint>

namespace lockstep::sys {

class SharedMemory {
 public:
  SharedMemory() = default;
  // How much may be made: the kernel counts it as a file.
  [[nodiscard]] static std::size_t most_bytes();
  // How much address space one mapping gets, up to `wanted`: `wanted`, half of it, a quarter, ...
  [[nodiscard]] static std::size_t address_space(std::size_t wanted);
  // New zeroed memory, most_bytes() at most. Only address space: a page is taken when it is first
  // touched. `label` shows in /proc/PID/maps.
  static SharedMemory create(const char* label, std::size_t bytes);
  // Maps what another process made. Throws BadInput unless it is at least `bytes` long and cannot
  // shrink. Core dumps of this process leave it out: the owner's have it.
  static SharedMemory open(FileDescriptor file, std::size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] int file() const { return file_.get(); }

  // Gives whole pages back to the system; they read as zero afterwards, in every process. False
  // when it was refused.
  [[nodiscard]] bool punch(std::size_t offset, std::size_t bytes) const noexcept;
  // Takes the pages of that range now, so that touching them cannot fail. False: they do not exist.
  [[nodiscard]] bool reserve(std::size_t offset, std::size_t bytes) const noexcept;
  // Children that are forked from now on do not have this mapping.
  void keep_from_children() const noexcept;
  // Bytes of pages that are taken now, by whichever process touched them.
  [[nodiscard]] std::size_t resident_bytes() const;

 private:
  SharedMemory(FileDescriptor file, std::size_t bytes);

  FileDescriptor file_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::sys
