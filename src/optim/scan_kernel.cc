// Compiled once per instruction set (Highway's foreach_target); the set is chosen at run time.
#include "optim/formats_kernel.h"

#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/scan_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "optim/lanes.h"

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
HWY_EXPORT(SumOfSquares);
}  // namespace

double sum_of_squares(const float* values, std::int64_t count, float factor, float limit) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(values, count, factor, limit);
}

}  // namespace lockstep::optim
#endif
