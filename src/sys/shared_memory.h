// Anonymous memory that several processes map: a memfd, passed on by its descriptor. The memory is
// freed with its last mapping and descriptor, however the processes end.
#pragma once

#include "sys/file_descriptor.h"

#include <cstddef>
#include <cstdint>

namespace lockstep::sys {

class SharedMemory {
 public:
  SharedMemory() = default;
  // Returns the maximum size of shared memory, which is the file size limit (ulimit -f).
  [[nodiscard]] static std::size_t most_bytes();
  // Returns the largest of `wanted`, wanted / 2, wanted / 4, ... for which one mapping gets address
  // space.
  [[nodiscard]] static std::size_t address_space(std::size_t wanted);
  // Creates zeroed memory of at most most_bytes(). Reserves only address space: a page is allocated
  // on first access. `label` appears in /proc/PID/maps. `place`: see the constructor.
  static SharedMemory create(const char* label, std::size_t bytes, int place = 0);
  // Maps memory that another process created. Throws BadInput unless it has at least `bytes` bytes
  // and cannot shrink. The mapping is not included in core dumps of this process, only in core
  // dumps of the owner.
  static SharedMemory open(FileDescriptor file, std::size_t bytes, int place = 0);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] int file() const { return file_.get(); }

  // Returns whole pages to the system; they read as zero afterwards, in every process. Returns
  // false if the system refused.
  [[nodiscard]] bool punch(std::size_t offset, std::size_t bytes) const noexcept;
  // Allocates the pages of the range now, so that accessing them cannot fail. Returns false if the
  // pages cannot be allocated.
  [[nodiscard]] bool reserve(std::size_t offset, std::size_t bytes) const noexcept;
  // Excludes this mapping from children that are forked later.
  void keep_from_children() const noexcept;
  // Returns the bytes of pages that are allocated, by any process.
  [[nodiscard]] std::size_t resident_bytes() const;

 private:
  // AMD's processors predict the way of a line in the first cache from a hash of address bits 12 to
  // 27. Two lines of one set with the same hash evict each other, and a loop over both takes up to
  // eight times as long. Mappings with different places (of 128) have different hashes at equal
  // offsets.
  SharedMemory(FileDescriptor file, std::size_t bytes, int place);

  FileDescriptor file_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::sys
