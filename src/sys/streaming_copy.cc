#include "sys/streaming_copy.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace lockstep::sys {
namespace {

#ifdef __SSE2__

constexpr std::size_t line_bytes = 64;

// Whole lines, from the beginning of one.
void copy_lines(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  for (const std::byte* const end = from + bytes; from != end; from += line_bytes) {
    const auto* in = reinterpret_cast<const __m128i*>(from);
    auto* out = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                  d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
    to += line_bytes;
  }
  _mm_sfence();  // such writes come in no order with others
}

#endif

}  // namespace

void streaming_copy(std::span<std::byte> to, std::span<const std::byte> from) noexcept {
  if (from.empty()) return;
#ifdef __SSE2__
  const std::size_t into_line = reinterpret_cast<std::uintptr_t>(to.data()) % line_bytes;
  const std::size_t before = std::min((line_bytes - into_line) % line_bytes, from.size());
  const std::size_t lines = (from.size() - before) / line_bytes * line_bytes;
  std::memcpy(to.data(), from.data(), before);
  copy_lines(to.data() + before, from.data() + before, lines);
  const std::size_t after = from.size() - before - lines;
  std::memcpy(to.data() + before + lines, from.data() + before + lines, after);
#else
  std::memcpy(to.data(), from.data(), from.size());
#endif
}

}  // namespace lockstep::sys
