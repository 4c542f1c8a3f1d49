// Compiled once per instruction set (Highway's foreach_target); the set is chosen at run time.
#include "optim/formats_kernel.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/formats_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "optim/lanes.h"

// 16-bit floats.

// Calls convert_lanes(from, to, index) for every whole vector, and once more for the rest, padded
// to a whole vector. `to` may also be read.
template <class From, class To, class Lanes>
void convert(const From* from, To* to, std::int64_t count, const Lanes& convert_lanes) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  auto elements = static_cast<std::size_t>(count);
  std::size_t i = 0;
  for (; i + lanes <= elements; i += lanes) convert_lanes(from + i, to + i, i);
  if (i == elements) return;
  From last[HWY_MAX_BYTES / sizeof(float)] = {};
  To result[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(last, from + i, (elements - i) * sizeof(From));
  std::memcpy(result, to + i, (elements - i) * sizeof(To));
  convert_lanes(last, result, i);
  std::memcpy(to + i, result, (elements - i) * sizeof(To));
}

// Converts IEEE halves in 32-bit words, as M. Dukhan's FP16 library does (fp16_ieee_to_fp32_value
// and fp16_ieee_from_fp32_value): some instruction sets do not round halves, and Highway does not
// emulate it.
HWY_INLINE Floats widened_half(Halves half) {
  const FloatTag tag;
  const WordTag words;
  Words word = hn::ShiftLeft<16>(hn::PromoteTo(words, half));
  Words twice = hn::Add(word, word);
  Words lifted = hn::Add(hn::ShiftRight<4>(twice), hn::Set(words, 0xe0U << 23));
  Floats normal = hn::Mul(hn::BitCast(tag, lifted), hn::Set(tag, 0x1.0p-112F));
  Words low = hn::Or(hn::ShiftRight<17>(twice), hn::Set(words, 126U << 23));
  Floats subnormal = hn::Sub(hn::BitCast(tag, low), hn::Set(tag, 0.5F));
  auto is_small = hn::RebindMask(tag, hn::Lt(twice, hn::Set(words, 1U << 27)));
  return hn::Or(hn::BitCast(tag, hn::And(word, hn::Set(words, 0x80000000U))),
                hn::IfThenElse(is_small, subnormal, normal));
}

HWY_INLINE Halves narrowed_half(Floats value) {
  const FloatTag tag;
  const WordTag words;
  Words word = hn::BitCast(words, value);
  Words twice = hn::Add(word, word);
  Words bias = hn::Max(hn::And(twice, hn::Set(words, 0xff000000U)), hn::Set(words, 0x71000000U));
  Floats scaled =
      hn::Mul(hn::Mul(hn::Abs(value), hn::Set(tag, 0x1.0p+112F)), hn::Set(tag, 0x1.0p-110F));
  Words corner = hn::Add(hn::ShiftRight<1>(bias), hn::Set(words, 0x07800000U));
  Words bits = hn::BitCast(words, hn::Add(hn::BitCast(tag, corner), scaled));
  Words nonsign = hn::Add(hn::And(hn::ShiftRight<13>(bits), hn::Set(words, 0x7c00U)),
                          hn::And(bits, hn::Set(words, 0x0fffU)));
  auto is_number = hn::RebindMask(words, hn::Eq(value, value));
  nonsign = hn::IfThenElse(is_number, nonsign, hn::Set(words, 0x7e00U));
  Words sign = hn::And(hn::ShiftRight<16>(word), hn::Set(words, 0x8000U));
  return low_halves(hn::Or(sign, nonsign));
}

void WidenHalf(const std::uint16_t* from, float* to, std::int64_t count) {
  convert(from, to, count, [](const std::uint16_t* f, float* t, std::size_t) {
    hn::StoreU(widened_half(hn::LoadU(HalfBits(), f)), FloatTag(), t);
  });
}

void NarrowHalf(const float* from, std::uint16_t* to, std::int64_t count) {
  convert(from, to, count, [](const float* f, std::uint16_t* t, std::size_t) {
    hn::StoreU(narrowed_half(hn::LoadU(FloatTag(), f)), HalfBits(), t);
  });
}

void WidenBFloat16(const std::uint16_t* from, float* to, std::int64_t count) {
  convert(from, to, count, [](const std::uint16_t* f, float* t, std::size_t) {
    hn::StoreU(widened_bfloat16(hn::LoadU(HalfBits(), f)), FloatTag(), t);
  });
}

void NarrowBFloat16(const float* from, std::uint16_t* to, std::int64_t count) {
  convert(from, to, count, [](const float* f, std::uint16_t* t, std::size_t) {
    hn::StoreU(narrowed_bfloat16(hn::LoadU(FloatTag(), f)), HalfBits(), t);
  });
}

void NarrowStochastically(const float* from, std::uint16_t* to, std::int64_t count,
                          const StochasticRounding& rounding) {
  convert(from, to, count, [&](const float* f, std::uint16_t* t, std::size_t i) {
    hn::StoreU(narrowed_bfloat16(hn::LoadU(FloatTag(), f), random_bits(rounding, i)), HalfBits(),
               t);
  });
}

// Compares bits as 32-bit words, because masks of 16-bit and 32-bit lanes are different types.
HWY_INLINE void follow(Halves bits, Halves rounded, Floats widened, float* master) {
  auto same = hn::Eq(hn::PromoteTo(WordTag(), bits), hn::PromoteTo(WordTag(), rounded));
  Floats own = hn::LoadU(FloatTag(), master);
  hn::StoreU(hn::IfThenElse(hn::RebindMask(FloatTag(), same), own, widened), FloatTag(), master);
}

void FollowHalf(const std::uint16_t* from, float* master, std::int64_t count) {
  convert(from, master, count, [](const std::uint16_t* f, float* m, std::size_t) {
    Halves bits = hn::LoadU(HalfBits(), f);
    follow(bits, narrowed_half(hn::LoadU(FloatTag(), m)), widened_half(bits), m);
  });
}

void FollowBFloat16(const std::uint16_t* from, float* master, std::int64_t count) {
  convert(from, master, count, [](const std::uint16_t* f, float* m, std::size_t) {
    Halves bits = hn::LoadU(HalfBits(), f);
    follow(bits, narrowed_bfloat16(hn::LoadU(FloatTag(), m)), widened_bfloat16(bits), m);
  });
}

// Blocks of 8-bit codes. Every function works on a whole block; the last one is padded with zeros.

using ByteTag = hn::Rebind<std::uint8_t, FloatTag>;

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

// The sum over gradients.

using DoubleTag = hn::ScalableTag<double>;
using Doubles = hn::Vec<DoubleTag>;

HWY_INLINE void add_squares(Floats values, Doubles& low, Doubles& high) {
#if HWY_TARGET == HWY_SCALAR  // a single lane has no halves
  Doubles value = hn::PromoteTo(DoubleTag(), values);
  low = hn::MulAdd(value, value, low);
  static_cast<void>(high);
#else
  const hn::Half<FloatTag> half;
  Doubles lower = hn::PromoteTo(DoubleTag(), hn::LowerHalf(half, values));
  Doubles upper = hn::PromoteTo(DoubleTag(), hn::UpperHalf(half, values));
  low = hn::MulAdd(lower, lower, low);
  high = hn::MulAdd(upper, upper, high);
#endif
}

double SumOfSquares(const float* values, std::int64_t count, float factor, float limit) {
  const FloatTag tag;
  const TransformLanes transform(factor, limit);
  const std::size_t lanes = hn::Lanes(tag);
  auto elements = static_cast<std::size_t>(count);
  Doubles a = hn::Zero(DoubleTag()), b = a, c = a, d = a;
  std::size_t i = 0;
  for (; i + 2 * lanes <= elements; i += 2 * lanes) {
    add_squares(transform(hn::LoadU(tag, values + i)), a, b);
    add_squares(transform(hn::LoadU(tag, values + i + lanes)), c, d);
  }
  for (; i < elements; i += lanes) {
    float last[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(last, values + i, (elements - i < lanes ? elements - i : lanes) * sizeof(float));
    add_squares(transform(hn::LoadU(tag, last)), a, b);
  }
  Doubles sum = hn::Add(hn::Add(a, b), hn::Add(c, d));
  return hn::GetLane(hn::SumOfLanes(DoubleTag(), sum));
}

}  // namespace
}  // namespace lockstep::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::optim {
namespace {
HWY_EXPORT(WidenHalf);
HWY_EXPORT(NarrowHalf);
HWY_EXPORT(WidenBFloat16);
HWY_EXPORT(NarrowBFloat16);
HWY_EXPORT(NarrowStochastically);
HWY_EXPORT(FollowHalf);
HWY_EXPORT(FollowBFloat16);
HWY_EXPORT(ReadBlocks);
HWY_EXPORT(WriteBlocks);
HWY_EXPORT(SumOfSquares);
}  // namespace

void widen(c10::ScalarType dtype, const std::uint16_t* from, float* to, std::int64_t count) {
  dtype == c10::ScalarType::Half ? HWY_DYNAMIC_DISPATCH(WidenHalf)(from, to, count)
                                 : HWY_DYNAMIC_DISPATCH(WidenBFloat16)(from, to, count);
}

void narrow(c10::ScalarType dtype, const float* from, std::uint16_t* to, std::int64_t count) {
  dtype == c10::ScalarType::Half ? HWY_DYNAMIC_DISPATCH(NarrowHalf)(from, to, count)
                                 : HWY_DYNAMIC_DISPATCH(NarrowBFloat16)(from, to, count);
}

void narrow_bfloat16(const float* from, std::uint16_t* to, std::int64_t count,
                     const StochasticRounding& rounding) {
  HWY_DYNAMIC_DISPATCH(NarrowStochastically)(from, to, count, rounding);
}

void follow(c10::ScalarType dtype, const std::uint16_t* bits, float* master, std::int64_t count) {
  dtype == c10::ScalarType::Half ? HWY_DYNAMIC_DISPATCH(FollowHalf)(bits, master, count)
                                 : HWY_DYNAMIC_DISPATCH(FollowBFloat16)(bits, master, count);
}

void read_blocks(Codes codes, const std::uint8_t* from, const float* scales, float* to,
                 std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(ReadBlocks)(codes, from, scales, to, count);
}

void write_blocks(Codes codes, const float* from, std::uint8_t* to, float* scales,
                  std::int64_t count, const StochasticRounding* rounding) {
  HWY_DYNAMIC_DISPATCH(WriteBlocks)(codes, from, to, scales, count, rounding);
}

double sum_of_squares(const float* values, std::int64_t count, float factor, float limit) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(values, count, factor, limit);
}

}  // namespace lockstep::optim
#endif
