#include "sys/streaming_copy.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace lockstep::sys {
namespace {

constexpr std::size_t line_bytes = 64;

bool always() { return true; }

#ifdef __x86_64__

void copy_by_16_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
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
  _mm_sfence();  // streaming writes are not ordered with other writes
}

// Writes a whole cache line at a time; a half line would wait for its other half.
__attribute__((target("avx512f"))) void copy_by_64_bytes(std::byte* to, const std::byte* from,
                                                         std::size_t bytes) noexcept {
  for (const std::byte* const end = from + bytes; from != end; from += line_bytes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
    to += line_bytes;
  }
  _mm_sfence();
}

bool has_64_bytes() { return __builtin_cpu_supports("avx512f") != 0; }

constexpr std::array kernels{StreamingKernel{"64 bytes (AVX-512)", has_64_bytes, copy_by_64_bytes},
                             StreamingKernel{"16 bytes (SSE2)", always, copy_by_16_bytes}};

#else

void copy_through_caches(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

constexpr std::array kernels{StreamingKernel{"memcpy", always, copy_through_caches}};

#endif

}  // namespace

std::span<const StreamingKernel> streaming_kernels() { return kernels; }

void streaming_copy_by(const StreamingKernel& kernel, std::span<std::byte> to,
                       std::span<const std::byte> from) noexcept {
  if (from.empty()) return;
  const std::size_t into_line = reinterpret_cast<std::uintptr_t>(to.data()) % line_bytes;
  const std::size_t before = std::min((line_bytes - into_line) % line_bytes, from.size());
  const std::size_t lines = (from.size() - before) / line_bytes * line_bytes;
  std::memcpy(to.data(), from.data(), before);
  kernel.copy_lines(to.data() + before, from.data() + before, lines);
  const std::size_t after = from.size() - before - lines;
  std::memcpy(to.data() + before + lines, from.data() + before + lines, after);
}

void streaming_copy(std::span<std::byte> to, std::span<const std::byte> from) noexcept {
  static const StreamingKernel& fastest = *std::ranges::find_if(
      kernels, [](const StreamingKernel& kernel) { return kernel.is_available(); });
  streaming_copy_by(fastest, to, from);
}

}  // namespace lockstep::sys
