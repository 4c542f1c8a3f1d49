// Compiled once for each instruction set (Highway's foreach_target) and chosen at run time.
#include "optim/formats_kernel.h"

#include "optim/targets.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/block_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "optim/dice_lanes.h"
#include "optim/lanes.h"

using ByteTag = hn::Rebind<std::uint8_t, FloatTag>;
using SignedByteTag = hn::Rebind<std::int8_t, FloatTag>;
using IntTag = hn::Rebind<std::int32_t, FloatTag>;

// Every function below works on a whole block in buffers; callers pad the last one with zeros.
using BlockFloats = float[block_elements];
using BlockCodes = std::uint8_t[block_elements];

// What code c stands for, as a share of the block's largest magnitude.
template <Codes codes>
HWY_INLINE Floats share_of(Floats c) {
  Floats x = hn::Mul(c, hn::Set(FloatTag(), codes == Codes::with_sign ? 1.0F / 127 : 1.0F / 255));
  if constexpr (codes == Codes::with_sign) return hn::Mul(x, hn::Abs(x));
  x = hn::Mul(x, x);
  return hn::Mul(x, x);
}

// The other way round, for a share that is not negative; between two codes a fraction.
template <Codes codes>
HWY_INLINE Floats code_of(Floats share) {
  if constexpr (codes == Codes::with_sign)
    return hn::Mul(hn::Sqrt(share), hn::Set(FloatTag(), 127));
  return hn::Mul(hn::Sqrt(hn::Sqrt(share)), hn::Set(FloatTag(), 255));
}

template <Codes codes>
HWY_INLINE Floats load_codes(const std::uint8_t* from) {
  if constexpr (codes == Codes::with_sign) {
    auto bytes = hn::LoadU(SignedByteTag(), reinterpret_cast<const std::int8_t*>(from));
    return hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), bytes));
  }
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::LoadU(ByteTag(), from)));
}

template <Codes codes>
HWY_INLINE void store_codes(Floats c, std::uint8_t* to) {
  auto whole = hn::ConvertTo(IntTag(), c);
  if constexpr (codes == Codes::with_sign)
    hn::StoreU(hn::DemoteTo(SignedByteTag(), whole), SignedByteTag(),
               reinterpret_cast<std::int8_t*>(to));
  else
    hn::StoreU(hn::DemoteTo(ByteTag(), whole), ByteTag(), to);
}

template <Codes codes>
void read_block(const BlockCodes& from, float scale, BlockFloats& to) {
  const FloatTag tag;
  Floats factor = hn::Set(tag, scale);
  for (std::size_t i = 0; i < block_elements; i += hn::Lanes(tag))
    hn::StoreU(hn::Mul(factor, share_of<codes>(load_codes<codes>(from + i))), tag, to + i);
}

float greatest_magnitude(const BlockFloats& values) {
  const FloatTag tag;
  Floats greatest = hn::Zero(tag);
  for (std::size_t i = 0; i < block_elements; i += hn::Lanes(tag))
    greatest = hn::Max(greatest, hn::Abs(hn::LoadU(tag, values + i)));
  return hn::GetLane(hn::MaxOfLanes(tag, greatest));
}

// One of the two codes beside `share`: the nearer one, or by dice so that the mean of what they
// stand for is the share itself (the mean of the codes would not be: they are powers apart).
template <Codes codes>
HWY_INLINE Floats round_code(Floats share, const Dice* dice, std::size_t place) {
  const FloatTag tag;
  Floats c = code_of<codes>(share);
  if (dice == nullptr) return hn::Floor(hn::Add(c, hn::Set(tag, 0.5F)));
  Floats low = hn::Floor(c), high = hn::Add(low, hn::Set(tag, 1));
  Floats below = share_of<codes>(low), above = share_of<codes>(high);
  Floats rolled = hn::Mul(hn::ConvertTo(tag, hn::BitCast(IntTag(), roll(*dice, place))),
                          hn::Set(tag, 0x1p-16F));
  auto goes_up = hn::Lt(hn::Mul(rolled, hn::Sub(above, below)), hn::Sub(share, below));
  return hn::IfThenElse(goes_up, high, low);
}

template <Codes codes>
void write_block(const BlockFloats& values, float scale, const Dice* dice, std::size_t place,
                 BlockCodes& to) {
  const FloatTag tag;
  Floats inverse = hn::Set(tag, scale > 0 ? 1 / scale : 0);
  Floats most = hn::Set(tag, codes == Codes::with_sign ? 127 : 255), one = hn::Set(tag, 1);
  for (std::size_t i = 0; i < block_elements; i += hn::Lanes(tag)) {
    Floats value = hn::LoadU(tag, values + i);
    Floats share = hn::Mul(hn::Abs(value), inverse);
    Floats c = hn::Min(round_code<codes>(share, dice, place + i), most);
    if constexpr (codes == Codes::with_sign)
      c = hn::CopySign(c, value);
    else
      c = hn::IfThenElseZero(hn::Gt(share, hn::Zero(tag)), hn::Max(c, one));
    store_codes<codes>(c, to + i);
  }
}

void ReadBlocks(Codes codes, const std::uint8_t* from, const float* scales, float* to,
                std::int64_t count) {
  for (std::int64_t begin = 0; begin < count; begin += block_elements) {
    auto length = static_cast<std::size_t>(std::min(block_elements, count - begin));
    HWY_ALIGN BlockCodes block = {};
    HWY_ALIGN BlockFloats values;
    std::memcpy(block, from + begin, length);
    float scale = scales[begin / block_elements];
    codes == Codes::with_sign ? read_block<Codes::with_sign>(block, scale, values)
                              : read_block<Codes::without_sign>(block, scale, values);
    std::memcpy(to + begin, values, length * sizeof(float));
  }
}

void WriteBlocks(Codes codes, const float* from, std::uint8_t* to, float* scales,
                 std::int64_t count, const Dice* dice) {
  for (std::int64_t begin = 0; begin < count; begin += block_elements) {
    auto length = static_cast<std::size_t>(std::min(block_elements, count - begin));
    HWY_ALIGN BlockFloats values = {};
    HWY_ALIGN BlockCodes block;
    std::memcpy(values, from + begin, length * sizeof(float));
    float scale = greatest_magnitude(values);
    auto place = static_cast<std::size_t>(begin);
    codes == Codes::with_sign ? write_block<Codes::with_sign>(values, scale, dice, place, block)
                              : write_block<Codes::without_sign>(values, scale, dice, place, block);
    std::memcpy(to + begin, block, length);
    scales[begin / block_elements] = scale;
  }
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
                  std::int64_t count, const Dice* dice) {
  HWY_DYNAMIC_DISPATCH(WriteBlocks)(codes, from, to, scales, count, dice);
}

}  // namespace lockstep::optim
#endif
