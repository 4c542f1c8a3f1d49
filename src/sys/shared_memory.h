// Memory that several processes map, and text and futexes in it.
#pragma once

#include "sys/file_descriptor.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <lockstep/base/deadline.h>

namespace lockstep::sys {

// Anonymous memory: a memfd, passed on by its descriptor. The memory is freed with its last mapping
// and descriptor, however the processes end.
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

  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::size_t bytes() const { return memory_ ? memory_.get_deleter().bytes : 0; }
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
  MappedMemory memory_;
};

// A short text in shared memory. The words of the text are atomic, so that a reader sees a mixture
// of old and new text, and not undefined behaviour, while the owner rewrites it. Readers must
// detect by other means whether the text changed while they read it.
template <std::size_t Words>
class SharedText {
 public:
  static constexpr std::size_t capacity = Words * 8;

  // Stores the first `capacity` bytes.
  void store(std::string_view text) {
    std::size_t length = std::min(text.size(), capacity);
    std::size_t words =
        std::min(Words, length / 8 + 1);  // with a terminating zero if there is room
    for (std::size_t i = 0; i < words; ++i) {
      std::uint64_t word = 0;
      std::size_t begin = i * 8;
      if (begin < length)
        std::memcpy(&word, text.data() + begin, std::min<std::size_t>(8, length - begin));
      words_[i].store(word, std::memory_order_relaxed);
    }
  }

  [[nodiscard]] std::string load() const {
    std::array<char, capacity + 1> text{};
    for (std::size_t i = 0; i < Words; ++i) {
      std::uint64_t word = words_[i].load(std::memory_order_relaxed);
      std::memcpy(text.data() + i * 8, &word, 8);
    }
    return std::string(text.data());
  }

 private:
  std::array<std::atomic<std::uint64_t>, Words> words_{};
};

// Futexes on words that several processes map. Waits can end spuriously, so callers must check
// their condition again.

// Sleeps while `word` equals `expected`, until it is woken, a signal arrives, or `most` has passed.
// Does not report which of these happened.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                Duration most) noexcept;

// Wakes all threads that sleep on `word`, in every process.
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace lockstep::sys
