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

#include "optim/bfloat16_lanes.h"

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

HWY_INLINE Floats widened_half(Halves bits) {
  return hn::PromoteTo(FloatTag(), hn::BitCast(HalfTag(), bits));
}

HWY_INLINE Halves narrowed_half(Floats values) {
  return hn::BitCast(HalfBits(), hn::DemoteTo(HalfTag(), values));
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
    hn::StoreU(narrowed_bfloat16(hn::LoadU(FloatTag(), f), roll(dice, i)), HalfBits(), t);
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
