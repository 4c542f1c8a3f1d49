// Copies of more than the caches hold.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::sys {

// As std::memcpy, of as many bytes, which do not overlap. What is written goes past the caches to
// the memory: it is not read first, and what others have in the caches stays there. For blocks that
// are not read again soon. Any thread; another one sees the bytes as after ordinary writes.
void streaming_copy(std::span<std::byte> to, std::span<const std::byte> from) noexcept;

}  // namespace lockstep::sys
