// Copies of more than the caches hold.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::sys {

// As std::memcpy, of as many bytes, which do not overlap. What is written goes past the caches to
// the memory: it is not read first, and what others have in the caches stays there. For blocks that
// are not read again soon. Any thread; another one sees the bytes as after ordinary writes.
void streaming_copy(std::span<std::byte> to, std::span<const std::byte> from) noexcept;

// The ways to do so, the fastest first, of which streaming_copy() takes the first that the
// processor has; the last is on every processor. Tests compare them all.
struct StreamingKernel {
  const char* name;
  bool (*is_available)();
  // Whole lines of 64 bytes to the beginning of one.
  void (*copy_lines)(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;
};
[[nodiscard]] std::span<const StreamingKernel> streaming_kernels();
void streaming_copy_by(const StreamingKernel& kernel, std::span<std::byte> to,
                       std::span<const std::byte> from) noexcept;

}  // namespace lockstep::sys
