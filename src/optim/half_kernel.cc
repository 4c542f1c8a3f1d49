// Compiled once for each instruction set (Highway's foreach_target) and chosen at run time.
#include "optim/formats_kernel.h"

#include "optim/targets.h"

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

#include "optim/dice_lanes.h"
#include "optim/lanes.h"

using HalfBits = hn::Rebind<std::uint16_t, FloatTag>;

// Calls lanes(from, to) for every whole vector, and for the rest by way of whole vectors.
template <class From, class To, class Lanes>
void convert(const From* from, To* to, std::int64_t count, const Lanes& convert_lanes) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  auto elements = static_cast<std::size_t>(count);
  std::size_t i = 0;
  for (; i + lanes <= elements; i += lanes) convert_lanes(from + i, to + i, i);
  if (i == elements) return;
  From last[HWY_MAX_BYTES / sizeof(float)] = {};
  To result[HWY_MAX_BYTES / sizeof(float)];
  std::memcpy(last, from + i, (elements - i) * sizeof(From));
  convert_lanes(last, result, i);
  std::memcpy(to + i, result, (elements - i) * sizeof(To));
}

// The same where `to` is read too.
template <class From, class To, class Lanes>
void update(const From* from, To* to, std::int64_t count, const Lanes& update_lanes) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  auto elements = static_cast<std::size_t>(count);
  std::size_t i = 0;
  for (; i + lanes <= elements; i += lanes) update_lanes(from + i, to + i);
  if (i == elements) return;
  From last[HWY_MAX_BYTES / sizeof(float)] = {};
  To result[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(last, from + i, (elements - i) * sizeof(From));
  std::memcpy(result, to + i, (elements - i) * sizeof(To));
  update_lanes(last, result);
  std::memcpy(to + i, result, (elements - i) * sizeof(To));
}

using HalfTag = hn::Rebind<hwy::float16_t, FloatTag>;
using Halves = hn::Vec<HalfBits>;

// The low 16 bits of each word, of which the high ones are 0.
HWY_INLINE Halves low_halves(Words words) {
  const hn::Rebind<std::int32_t, FloatTag> signed_tag;
  return hn::DemoteTo(HalfBits(), hn::BitCast(signed_tag, words));
}

HWY_INLINE Floats widened_half(Halves bits) {
  return hn::PromoteTo(FloatTag(), hn::BitCast(HalfTag(), bits));
}

HWY_INLINE Halves narrowed_half(Floats values) {
  return hn::BitCast(HalfBits(), hn::DemoteTo(HalfTag(), values));
}

HWY_INLINE Floats widened_bfloat16(Halves bits) {
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), bits)));
}

// `added` is what is added below the bits that stay, before they are cut off.
HWY_INLINE Halves narrowed_bfloat16(Floats values, Words added) {
  Words rounded = hn::ShiftRight<16>(hn::Add(hn::BitCast(WordTag(), values), added));
  auto is_number = hn::RebindMask(WordTag(), hn::Eq(values, values));
  return low_halves(hn::IfThenElse(is_number, rounded, hn::Set(WordTag(), 0x7fc0U)));
}

HWY_INLINE Halves narrowed_bfloat16(Floats values) {
  Words bits = hn::BitCast(WordTag(), values);
  Words odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(WordTag(), 1U));
  return narrowed_bfloat16(values, hn::Add(odd, hn::Set(WordTag(), 0x7fffU)));
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

void NarrowByDice(const float* from, std::uint16_t* to, std::int64_t count, const Dice& dice) {
  convert(from, to, count, [&](const float* f, std::uint16_t* t, std::size_t i) {
    Floats values = hn::LoadU(FloatTag(), f);
    // An infinity has no bits below, and must not become something else.
    auto is_finite = hn::RebindMask(WordTag(), hn::IsFinite(values));
    Words added = hn::IfThenElseZero(is_finite, roll(dice, i));
    hn::StoreU(narrowed_bfloat16(values, added), HalfBits(), t);
  });
}

// Bits are compared as whole words: masks of 16-bit and of 32-bit lanes are two types.
HWY_INLINE void follow(Halves bits, Halves rounded, Floats widened, float* master) {
  auto same = hn::Eq(hn::PromoteTo(WordTag(), bits), hn::PromoteTo(WordTag(), rounded));
  Floats own = hn::LoadU(FloatTag(), master);
  hn::StoreU(hn::IfThenElse(hn::RebindMask(FloatTag(), same), own, widened), FloatTag(), master);
}

void FollowHalf(const std::uint16_t* from, float* master, std::int64_t count) {
  update(from, master, count, [](const std::uint16_t* f, float* m) {
    Halves bits = hn::LoadU(HalfBits(), f);
    follow(bits, narrowed_half(hn::LoadU(FloatTag(), m)), widened_half(bits), m);
  });
}

void FollowBFloat16(const std::uint16_t* from, float* master, std::int64_t count) {
  update(from, master, count, [](const std::uint16_t* f, float* m) {
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
HWY_EXPORT(NarrowByDice);
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

void narrow_bfloat16(const float* from, std::uint16_t* to, std::int64_t count, const Dice& dice) {
  HWY_DYNAMIC_DISPATCH(NarrowByDice)(from, to, count, dice);
}

void follow_half(const std::uint16_t* bits, float* master, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(FollowHalf)(bits, master, count);
}

void follow_bfloat16(const std::uint16_t* bits, float* master, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(FollowBFloat16)(bits, master, count);
}

}  // namespace lockstep::optim
#endif
