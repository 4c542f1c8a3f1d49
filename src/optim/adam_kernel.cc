// Compiled once for each instruction set (Highway's foreach_target) and chosen at run time.
#include "optim/adam_kernel.h"

#include "optim/targets.h"

#include <array>
#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adam_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "optim/lanes.h"

struct AdamLanes {
  explicit AdamLanes(const AdamConstants& c)
      : treatment(c.factor, c.limit),
        decay(hn::Set(FloatTag(), c.decay)),
        kept(hn::Set(FloatTag(), c.kept)),
        beta1(hn::Set(FloatTag(), c.beta1)),
        new1(hn::Set(FloatTag(), c.new1)),
        beta2(hn::Set(FloatTag(), c.beta2)),
        new2(hn::Set(FloatTag(), c.new2)),
        root(hn::Set(FloatTag(), c.root)),
        eps(hn::Set(FloatTag(), c.eps)),
        step_size(hn::Set(FloatTag(), c.step_size)) {}

  TreatmentLanes treatment;
  Floats decay, kept, beta1, new1, beta2, new2, root, eps, step_size;
};

template <bool amsgrad>
HWY_INLINE void update_lanes(const AdamLanes& c, float* parameter, const float* gradient,
                             float* average, float* square,
                             [[maybe_unused]] float* greatest_square) {
  const FloatTag tag;
  Floats w = hn::LoadU(tag, parameter);
  Floats g = hn::MulAdd(w, c.decay, c.treatment(hn::LoadU(tag, gradient)));
  w = hn::Mul(w, c.kept);
  Floats m = hn::MulAdd(g, c.new1, hn::Mul(hn::LoadU(tag, average), c.beta1));
  Floats v = hn::MulAdd(hn::Mul(g, c.new2), g, hn::Mul(hn::LoadU(tag, square), c.beta2));
  hn::StoreU(m, tag, average);
  hn::StoreU(v, tag, square);
  if constexpr (amsgrad) {
    v = hn::Max(hn::LoadU(tag, greatest_square), v);
    hn::StoreU(v, tag, greatest_square);
  }
  Floats denominator = hn::Add(hn::Div(hn::Sqrt(v), c.root), c.eps);
  w = hn::Sub(w, hn::Div(hn::Mul(c.step_size, m), denominator));
  hn::StoreU(w, tag, parameter);
}

// The last elements, fewer than a vector has: by way of whole vectors, so that an element's bits do
// not depend on its place.
template <bool amsgrad>
void update_rest(const AdamLanes& c, const AdamSpan& span, std::size_t begin) {
  std::size_t count = static_cast<std::size_t>(span.count) - begin;
  if (count == 0) return;
  LaneBuffer parameter(span.parameter + begin, count), gradient(span.gradient + begin, count);
  LaneBuffer average(span.average + begin, count), square(span.square + begin, count);
  LaneBuffer greatest(amsgrad ? span.greatest_square + begin : nullptr, amsgrad ? count : 0);
  update_lanes<amsgrad>(c, parameter.values, gradient.values, average.values, square.values,
                        greatest.values);
  parameter.store(span.parameter + begin);
  average.store(span.average + begin);
  square.store(span.square + begin);
  if constexpr (amsgrad) greatest.store(span.greatest_square + begin);
}

template <bool amsgrad>
void update_span(const AdamLanes& c, const AdamSpan& span) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  auto count = static_cast<std::size_t>(span.count);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    update_lanes<amsgrad>(c, span.parameter + i, span.gradient + i, span.average + i,
                          span.square + i, amsgrad ? span.greatest_square + i : nullptr);
  update_rest<amsgrad>(c, span, i);
}

void UpdateAdam(const AdamConstants& constants, const AdamSpan& span) {
  const AdamLanes lanes(constants);
  if (span.greatest_square != nullptr)
    update_span<true>(lanes, span);
  else
    update_span<false>(lanes, span);
}

}  // namespace
}  // namespace lockstep::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::optim {
namespace {
HWY_EXPORT(UpdateAdam);
}  // namespace

void update_adam(const AdamConstants& constants, const AdamSpan& span) {
  HWY_DYNAMIC_DISPATCH(UpdateAdam)(constants, span);
}

}  // namespace lockstep::optim
#endif
