// Compiled once per instruction set (Highway's foreach_target); the set is chosen at run time.
#include "optim/formats_kernel.h"

#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/half_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "optim/lanes.h"

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
}  // namespace

void widen_half(const std::uint16_t* from, float* to, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(WidenHalf)(from, to, count);
}

void widen_bfloat16(const std::uint16_t* from, float* to, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(WidenBFloat16)(from, to, count);
}

void narrow_half(const float* from, std::uint16_t* to, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(NarrowHalf)(from, to, count);
}

void narrow_bfloat16(const float* from, std::uint16_t* to, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(NarrowBFloat16)(from, to, count);
}

void narrow_bfloat16(const float* from, std::uint16_t* to, std::int64_t count,
                     const StochasticRounding& rounding) {
  HWY_DYNAMIC_DISPATCH(NarrowStochastically)(from, to, count, rounding);
}

void follow_half(const std::uint16_t* bits, float* master, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(FollowHalf)(bits, master, count);
}

void follow_bfloat16(const std::uint16_t* bits, float* master, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(FollowBFloat16)(bits, master, count);
}

}  // namespace lockstep::optim
#endif
