#include "checkpoint/checksum.h"

#include "comm/kernels/combine.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace lockstep::checkpoint {
namespace {

std::uint32_t by_zlib(std::span<const std::byte> bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(
      ::crc32_z(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

#ifdef __x86_64__

// Several times as fast as zlib. Carry-less multiplication by a power of x moves a 16-byte lane to
// the position of the next round (Gopal and others, "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction", Intel 2009). All bits are reflected.
constexpr std::size_t lane_bytes = 16;

// Returns x^power modulo the polynomial of CRC-32, the bit of x^0 first, shifted by one: the
// carry-less product of reflected numbers is one bit short.
constexpr std::uint64_t power_of_x(unsigned power) {
  constexpr std::uint32_t polynomial = 0xedb88320;
  std::uint32_t value = 0x80000000;  // x^0
  for (unsigned i = 0; i < power; ++i) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
  return std::uint64_t{value} << 1;
}

// The factors that move a lane by `bits`: the first of its halves is 64 bits further from the end.
constexpr std::array<std::uint64_t, 2> moving_by(unsigned bits) {
  return {power_of_x(bits + 32), power_of_x(bits - 32)};
}

__m128i constant(const std::array<std::uint64_t, 2>& halves) {
  return _mm_set_epi64x(static_cast<long long>(halves[1]), static_cast<long long>(halves[0]));
}

__m128i lane_at(const std::byte* place) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(place));
}

__attribute__((target("pclmul"))) __m128i moved(__m128i lane, __m128i by) {
  return _mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00), _mm_clmulepi64_si128(lane, by, 0x11));
}

// Returns the checksum of consecutive lanes.
__attribute__((target("pclmul"))) std::uint32_t of_lanes(const std::byte* lanes,
                                                         std::size_t count) {
  constexpr auto by_lane = moving_by(8 * lane_bytes);
  const __m128i one = constant(by_lane);
  __m128i all = lane_at(lanes);
  for (std::size_t i = 1; i < count; ++i)
    all = _mm_xor_si128(moved(all, one), lane_at(lanes + i * lane_bytes));
  std::array<std::byte, lane_bytes> last{};
  _mm_storeu_si128(reinterpret_cast<__m128i*>(last.data()), all);
  return by_zlib(last, ~std::uint32_t{0});
}

constexpr std::size_t four_lanes = 4 * lane_bytes;

__attribute__((target("pclmul"))) std::uint32_t by_four_lanes(std::span<const std::byte> bytes,
                                                              std::uint32_t before) {
  constexpr auto by_round = moving_by(8 * four_lanes);
  const __m128i round = constant(by_round);
  const std::byte* place = bytes.data();
  const std::byte* const end = place + bytes.size();
  __m128i a = _mm_xor_si128(lane_at(place), _mm_cvtsi32_si128(static_cast<int>(~before)));
  __m128i b = lane_at(place + 16), c = lane_at(place + 32), d = lane_at(place + 48);
  for (place += four_lanes; place != end; place += four_lanes) {
    a = _mm_xor_si128(moved(a, round), lane_at(place));
    b = _mm_xor_si128(moved(b, round), lane_at(place + 16));
    c = _mm_xor_si128(moved(c, round), lane_at(place + 32));
    d = _mm_xor_si128(moved(d, round), lane_at(place + 48));
  }
  std::array<std::byte, four_lanes> lanes{};
  _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes.data()), a);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes.data() + 16), b);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes.data() + 32), c);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes.data() + 48), d);
  return of_lanes(lanes.data(), 4);
}

bool has_lanes() { return __builtin_cpu_supports("pclmul") != 0; }

// The same algorithm with four lanes in each of four registers.
constexpr std::size_t sixteen_lanes = 16 * lane_bytes;

#define LOCKSTEP_WIDE __attribute__((target("avx512f,vpclmulqdq,pclmul")))

LOCKSTEP_WIDE __m512i lanes_at(const std::byte* place) { return _mm512_loadu_si512(place); }

LOCKSTEP_WIDE __m512i moved_onto(__m512i lanes, __m512i by, __m512i next) {
  constexpr int exclusive_or_of_three = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, by, 0x00),
                                   _mm512_clmulepi64_epi128(lanes, by, 0x11), next,
                                   exclusive_or_of_three);
}

// Loads the lanes at `place`, and copies them to a separate cache line if `copies` is set.
template <bool copies>
LOCKSTEP_WIDE __m512i taken(const std::byte* place, std::byte* to) {
  const __m512i lanes = lanes_at(place);
  if constexpr (copies) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), lanes);
  return lanes;
}

template <bool copies>
LOCKSTEP_WIDE std::uint32_t sum_wide(std::span<const std::byte> bytes, std::uint32_t before,
                                     std::byte* to) {
  constexpr auto by_round = moving_by(8 * sixteen_lanes);
  const auto low = static_cast<long long>(by_round[0]), high = static_cast<long long>(by_round[1]);
  const __m512i round = _mm512_set4_epi64(high, low, high, low);
  const std::byte* const from = bytes.data();
  const auto at = [&](std::size_t place) LOCKSTEP_WIDE {
    return taken<copies>(from + place, copies ? to + place : nullptr);
  };
  __m512i a =
      _mm512_xor_si512(at(0), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~before))));
  __m512i b = at(64), c = at(128), d = at(192);
  for (std::size_t place = sixteen_lanes; place != bytes.size(); place += sixteen_lanes) {
    a = moved_onto(a, round, at(place));
    b = moved_onto(b, round, at(place + 64));
    c = moved_onto(c, round, at(place + 128));
    d = moved_onto(d, round, at(place + 192));
  }
  if constexpr (copies) _mm_sfence();  // streaming stores are not ordered with other stores
  std::array<std::byte, sixteen_lanes> lanes{};
  _mm512_storeu_si512(lanes.data(), a);
  _mm512_storeu_si512(lanes.data() + 64, b);
  _mm512_storeu_si512(lanes.data() + 128, c);
  _mm512_storeu_si512(lanes.data() + 192, d);
  return of_lanes(lanes.data(), 16);
}

std::uint32_t by_sixteen_lanes(std::span<const std::byte> bytes, std::uint32_t before) {
  return sum_wide</*copies=*/false>(bytes, before, nullptr);
}

bool has_wide_lanes() {
  return has_lanes() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("vpclmulqdq") != 0;
}

#undef LOCKSTEP_WIDE

#endif

bool always() { return true; }

constexpr std::array kernels{
#ifdef __x86_64__
    Crc32Kernel{"sixteen lanes (VPCLMULQDQ)", has_wide_lanes, sixteen_lanes, by_sixteen_lanes,
                sum_wide</*copies=*/true>},
    Crc32Kernel{"four lanes (PCLMULQDQ)", has_lanes, four_lanes, by_four_lanes},
#endif
    Crc32Kernel{"tables (zlib)", always, 1, by_zlib}};

}  // namespace

std::span<const Crc32Kernel> crc32_kernels() { return kernels; }

std::uint32_t crc32_by(const Crc32Kernel& kernel, std::span<const std::byte> bytes,
                       std::uint32_t before) {
  // zlib interprets a null pointer as a request to start anew.
  if (bytes.empty()) return before;
  const std::size_t whole = bytes.size() / kernel.round_bytes * kernel.round_bytes;
  if (whole != 0) before = kernel.of(bytes.first(whole), before);
  return whole == bytes.size() ? before : by_zlib(bytes.subspan(whole), before);
}

std::uint32_t crc32_copied_by(const Crc32Kernel& kernel, std::span<std::byte> to,
                              std::span<const std::byte> from, std::uint32_t before) {
  constexpr std::size_t line_bytes = 64;
  const bool begins_line = reinterpret_cast<std::uintptr_t>(to.data()) % line_bytes == 0;
  if (kernel.of_copied == nullptr || !begins_line || from.size() < kernel.round_bytes) {
    kernels::copy_bytes(to.data(), from.data(), from.size(), /*stream=*/true);
    return crc32_by(kernel, from, before);
  }
  const std::size_t whole = from.size() / kernel.round_bytes * kernel.round_bytes;
  before = kernel.of_copied(from.first(whole), before, to.data());
  if (whole == from.size()) return before;
  std::memcpy(to.data() + whole, from.data() + whole, from.size() - whole);
  return by_zlib(from.subspan(whole), before);
}

namespace {

const Crc32Kernel& fastest_kernel() {
  static const Crc32Kernel& fastest = *std::ranges::find_if(
      crc32_kernels(), [](const auto& kernel) { return kernel.is_available(); });
  return fastest;
}

}  // namespace

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  return crc32_by(fastest_kernel(), bytes, before);
}

std::uint32_t crc32_of_copied(std::span<std::byte> to, std::span<const std::byte> from) {
  return crc32_copied_by(fastest_kernel(), to, from, 0);
}

// crc(a + b) = shift(crc(a), length of b) ^ crc(b), and shift(c, n) is zlib's crc32_combine with
// the checksum 0 and length n.
std::uint32_t crc32_share(std::uint32_t checksum, std::uint64_t behind) {
  return static_cast<std::uint32_t>(::crc32_combine(checksum, 0, static_cast<z_off_t>(behind)));
}

}  // namespace lockstep::checkpoint
