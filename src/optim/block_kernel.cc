// Compiled once per instruction set (Highway's foreach_target); the set is chosen at run time.
#include "optim/formats_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/block_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "optim/lanes.h"

using ByteTag = hn::Rebind<std::uint8_t, FloatTag>;

// Every function below works on a whole block; the last one is padded with zeros.

// Properties of each code format: the float32 bits of exponent 0, the largest code, and the
// smallest positive value relative to the scale.
template <Codes codes>
struct Small {
  static constexpr bool has_sign = codes == Codes::with_sign;
  static constexpr std::uint32_t largest = has_sign ? 0x7f : 0xff;
  static constexpr std::uint32_t bias = (127U - (largest >> 3)) << 3;
  static constexpr float least = has_sign ? 1.125F / 32768 : 1.125F / 2147483648;
};

template <Codes codes>
void read_block(const std::uint8_t* from, float scale, float* to) {
  using Kind = Small<codes>;
  const FloatTag tag;
  const WordTag words;
  Floats factor = hn::Set(tag, scale);
  Words bias = hn::Set(words, Kind::bias), magnitude = hn::Set(words, Kind::largest);
  for (std::size_t i = 0; i < block_elements; i += hn::Lanes(tag)) {
    Words code = hn::PromoteTo(words, hn::LoadU(ByteTag(), from + i));
    Words size = hn::And(code, magnitude);
    Words bits = hn::ShiftLeft<20>(hn::Add(size, bias));
    bits = hn::IfThenZeroElse(hn::Eq(size, hn::Zero(words)), bits);
    if constexpr (Kind::has_sign)
      bits = hn::Or(bits, hn::ShiftLeft<24>(hn::AndNot(magnitude, code)));
    hn::StoreU(hn::Mul(factor, hn::BitCast(tag, bits)), tag, to + i);
  }
}

float greatest_magnitude(const float* values) {
  const FloatTag tag;
  Floats greatest = hn::Zero(tag);
  for (std::size_t i = 0; i < block_elements; i += hn::Lanes(tag))
    greatest = hn::Max(greatest, hn::Abs(hn::LoadU(tag, values + i)));
  return hn::GetLane(hn::MaxOfLanes(tag, greatest));
}

// Returns the smallest power of two p with greatest <= 1.875 * p, within the range of usable
// scales.
float scale_for(float greatest) {
  if (!(greatest > 0x1p-90F) || !(greatest < 0x1p+126F)) return greatest > 1 ? 0x1p+126F : 0x1p-90F;
  int exponent = 0;
  float fraction = std::frexp(greatest, &exponent);  // in [0.5, 1)
  return std::ldexp(1.0F, fraction > 0.9375F ? exponent : exponent - 1);
}

template <Codes codes>
void write_block(const float* values, float scale, const StochasticRounding* rounding,
                 std::size_t place, std::uint8_t* to) {
  using Kind = Small<codes>;
  const FloatTag tag;
  const WordTag words;
  const hn::Rebind<std::int32_t, FloatTag> ints;
  Floats inverse = hn::Set(tag, 1 / scale), least = hn::Set(tag, Kind::least);
  for (std::size_t i = 0; i < block_elements; i += hn::Lanes(tag)) {
    Floats value = hn::LoadU(tag, values + i);
    Floats share = hn::Mul(hn::Abs(value), inverse);
    Words random =
        rounding != nullptr ? random_bits(*rounding, place + i) : hn::Set(words, 0x7fffU);
    Words added = hn::Add(hn::ShiftLeft<4>(random), hn::Set(words, 8U));
    Words code = hn::ShiftRight<20>(hn::Add(hn::BitCast(words, share), added));
    code = hn::Sub(code, hn::Set(words, Kind::bias));
    code = hn::Min(code, hn::Set(words, Kind::largest));
    // Below the smallest value there are no bits to shift: round to the smallest value or to zero.
    Floats limit = hn::Mul(hn::ConvertTo(tag, hn::BitCast(ints, random)),
                           hn::Set(tag, Kind::least * 0x1p-16F));
    auto stays = Kind::has_sign ? hn::Gt(share, limit) : hn::Gt(value, hn::Zero(tag));
    Words small = hn::IfThenElseZero(hn::RebindMask(words, stays), hn::Set(words, 1U));
    code = hn::IfThenElse(hn::RebindMask(words, hn::Lt(share, least)), small, code);
    if constexpr (Kind::has_sign)
      code = hn::Or(code,
                    hn::And(hn::ShiftRight<24>(hn::BitCast(words, value)), hn::Set(words, 0x80U)));
    hn::StoreU(hn::DemoteTo(ByteTag(), hn::BitCast(ints, code)), ByteTag(), to + i);
  }
}

void read_any(Codes codes, const std::uint8_t* from, float scale, float* to) {
  codes == Codes::with_sign ? read_block<Codes::with_sign>(from, scale, to)
                            : read_block<Codes::without_sign>(from, scale, to);
}

float write_any(Codes codes, const float* values, const StochasticRounding* rounding,
                std::size_t place, std::uint8_t* to) {
  float scale = scale_for(greatest_magnitude(values));
  codes == Codes::with_sign ? write_block<Codes::with_sign>(values, scale, rounding, place, to)
                            : write_block<Codes::without_sign>(values, scale, rounding, place, to);
  return scale;
}

void ReadBlocks(Codes codes, const std::uint8_t* from, const float* scales, float* to,
                std::int64_t count) {
  std::int64_t begin = 0;
  for (; begin + block_elements <= count; begin += block_elements)
    read_any(codes, from + begin, *scales++, to + begin);
  if (begin == count) return;
  auto length = static_cast<std::size_t>(count - begin);
  HWY_ALIGN std::uint8_t last[block_elements] = {};
  HWY_ALIGN float values[block_elements];
  std::memcpy(last, from + begin, length);
  read_any(codes, last, *scales, values);
  std::memcpy(to + begin, values, length * sizeof(float));
}

void WriteBlocks(Codes codes, const float* from, std::uint8_t* to, float* scales,
                 std::int64_t count, const StochasticRounding* rounding) {
  std::int64_t begin = 0;
  for (; begin + block_elements <= count; begin += block_elements)
    *scales++ =
        write_any(codes, from + begin, rounding, static_cast<std::size_t>(begin), to + begin);
  if (begin == count) return;
  auto length = static_cast<std::size_t>(count - begin);
  HWY_ALIGN float last[block_elements] = {};
  HWY_ALIGN std::uint8_t block[block_elements];
  std::memcpy(last, from + begin, length * sizeof(float));
  *scales = write_any(codes, last, rounding, static_cast<std::size_t>(begin), block);
  std::memcpy(to + begin, block, length);
}

}  // namespace
}  // namespace lockstep::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::optim {
namespace {
HWY_EXPORT(ReadBlocks);
HWY_EXPORT(WriteBlocks);
}  // namespace

void read_blocks(Codes codes, const std::uint8_t* from, const float* scales, float* to,
                 std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(ReadBlocks)(codes, from, scales, to, count);
}

void write_blocks(Codes codes, const float* from, std::uint8_t* to, float* scales,
                  std::int64_t count, const StochasticRounding* rounding) {
  HWY_DYNAMIC_DISPATCH(WriteBlocks)(codes, from, to, scales, count, rounding);
}

}  // namespace lockstep::optim
#endif
