// Compiled once per instruction set (Highway's foreach_target); the set is chosen at run time.
#include "checkpoint/checksum.h"

#include "comm/kernels/combine.h"

#include <hwy/cache_control.h>

#include <zlib.h>

#include <array>
#include <cstring>

#define HWY_WANT_AVX3_DL 1  // AVX-512 with VPCLMULQDQ
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "checkpoint/checksum.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::checkpoint::HWY_NAMESPACE {
namespace {

std::uint32_t by_zlib(std::span<const std::byte> bytes, std::uint32_t before) {
  // zlib interprets a null pointer as a request to start anew.
  if (bytes.empty()) return before;
  return static_cast<std::uint32_t>(
      ::crc32_z(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

#if HWY_TARGET <= HWY_SSE4  // x86 with carry-less multiplication

namespace hn = hwy::HWY_NAMESPACE;

// Several times as fast as zlib. Carry-less multiplication by a power of x moves a 16-byte lane to
// the position of the next round (Gopal and others, "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction", Intel 2009). All bits are reflected. The 256-bit instruction is not
// used: without AVX-512, Highway splits it.
using Lane = hn::FixedTag<std::uint64_t, 2>;
using Lanes = hn::FixedTag<std::uint64_t, HWY_TARGET <= HWY_AVX3_DL ? 8 : 2>;
constexpr std::size_t lane_bytes = 16;
constexpr std::size_t vector_bytes = hn::MaxLanes(Lanes()) * sizeof(std::uint64_t);
constexpr std::size_t round_bytes = 4 * vector_bytes;

// Returns x^power modulo the polynomial of CRC-32, the bit of x^0 first, shifted by one: the
// carry-less product of reflected numbers is one bit short.
constexpr std::uint64_t power_of_x(unsigned power) {
  constexpr std::uint32_t polynomial = 0xedb88320;
  std::uint32_t value = 0x80000000;  // x^0
  for (unsigned i = 0; i < power; ++i) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
  return std::uint64_t{value} << 1;
}

// The factors that move a lane by `bits`: the first of its halves is 64 bits further from the end.
struct MovingBy {
  constexpr explicit MovingBy(unsigned bits)
      : factors{power_of_x(bits + 32), power_of_x(bits - 32)} {}
  alignas(lane_bytes) std::uint64_t factors[2];
};

template <class Tag>
HWY_INLINE hn::Vec<Tag> lanes_at(Tag tag, const std::byte* place) {
  return hn::LoadU(tag, reinterpret_cast<const std::uint64_t*>(place));
}

template <class V>
HWY_INLINE V moved_onto(V lanes, V by, V next) {
  return hn::Xor3(hn::CLMulLower(lanes, by), hn::CLMulUpper(lanes, by), next);
}

// Returns the checksum of `bytes`, a positive multiple of a round, appended to data with the
// checksum `before`. If `copies` is set, copies them to `to`, which begins a cache line.
template <bool copies>
std::uint32_t sum_of_rounds(std::span<const std::byte> bytes, std::uint32_t before, std::byte* to) {
  static constexpr MovingBy by_round(8 * round_bytes), by_lane(8 * lane_bytes);
  const Lanes tag;
  const auto round = hn::LoadDup128(tag, by_round.factors);
  const auto take = [&](std::size_t place) HWY_ATTR {
    const auto lanes = lanes_at(tag, bytes.data() + place);
    if constexpr (copies) hn::Stream(lanes, tag, reinterpret_cast<std::uint64_t*>(to + place));
    return lanes;
  };
  alignas(vector_bytes)
      const std::uint64_t begin[hn::MaxLanes(Lanes())] = {static_cast<std::uint32_t>(~before)};
  auto a = hn::Xor(take(0), hn::Load(tag, begin)), b = take(vector_bytes);
  auto c = take(2 * vector_bytes), d = take(3 * vector_bytes);
  for (std::size_t place = round_bytes; place != bytes.size(); place += round_bytes) {
    a = moved_onto(a, round, take(place));
    b = moved_onto(b, round, take(place + vector_bytes));
    c = moved_onto(c, round, take(place + 2 * vector_bytes));
    d = moved_onto(d, round, take(place + 3 * vector_bytes));
  }
  if constexpr (copies) hwy::FlushStream();  // streaming stores are not ordered with other stores
  std::array<std::uint64_t, round_bytes / sizeof(std::uint64_t)> left{};
  for (std::size_t i = 0; const auto& lanes : {a, b, c, d})
    hn::StoreU(lanes, tag, &left[i++ * hn::MaxLanes(tag)]);
  const Lane one;
  auto all = hn::LoadU(one, left.data());
  for (std::size_t i = 2; i < left.size(); i += 2)
    all = moved_onto(all, hn::LoadU(one, by_lane.factors), hn::LoadU(one, &left[i]));
  std::array<std::byte, lane_bytes> last{};
  hn::StoreU(all, one, reinterpret_cast<std::uint64_t*>(last.data()));
  return by_zlib(last, ~std::uint32_t{0});
}

// `to` is null, or begins a cache line.
std::uint32_t Sum(std::span<const std::byte> bytes, std::uint32_t before, std::byte* to) {
  const std::size_t whole = bytes.size() / round_bytes * round_bytes;
  const auto rounds = bytes.first(whole), rest = bytes.subspan(whole);
  if (whole != 0)
    before = to == nullptr ? sum_of_rounds</*copies=*/false>(rounds, before, nullptr)
                           : sum_of_rounds</*copies=*/true>(rounds, before, to);
  if (to != nullptr && !rest.empty()) std::memcpy(to + whole, rest.data(), rest.size());
  return by_zlib(rest, before);
}

#else

std::uint32_t Sum(std::span<const std::byte> bytes, std::uint32_t before, std::byte* to) {
  if (to != nullptr) kernels::copy_bytes(to, bytes.data(), bytes.size(), /*stream=*/true);
  return by_zlib(bytes, before);
}

#endif

}  // namespace
}  // namespace lockstep::checkpoint::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::checkpoint {
namespace {
HWY_EXPORT(Sum);
}  // namespace

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  return HWY_DYNAMIC_DISPATCH(Sum)(bytes, before, nullptr);
}

std::uint32_t crc32_of_copied(std::span<std::byte> to, std::span<const std::byte> from) {
  constexpr std::size_t line_bytes = 64;
  if (reinterpret_cast<std::uintptr_t>(to.data()) % line_bytes == 0)
    return HWY_DYNAMIC_DISPATCH(Sum)(from, 0, to.data());
  kernels::copy_bytes(to.data(), from.data(), from.size(), /*stream=*/true);
  return crc32_of(from);
}

// crc(a + b) = shift(crc(a), length of b) ^ crc(b), and shift(c, n) is zlib's crc32_combine with
// the checksum 0 and length n.
std::uint32_t crc32_share(std::uint32_t checksum, std::uint64_t behind) {
  return static_cast<std::uint32_t>(::crc32_combine(checksum, 0, static_cast<z_off_t>(behind)));
}

}  // namespace lockstep::checkpoint
#endif
