// Compiled once per instruction set (Highway's foreach_target); the set is chosen at run time.
#include "optim/sgd_kernel.h"

#include "optim/formats_kernel.h"
#include "optim/prefetch.h"

#include <array>
#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/sgd_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "optim/lanes.h"

enum class Momentum { none, plain, nesterov };

struct SgdLanes {
  explicit SgdLanes(const SgdConstants& c)
      : transform(c.factor, c.limit),
        decay(hn::Set(FloatTag(), c.decay)),
        momentum(hn::Set(FloatTag(), c.momentum)),
        undamped(hn::Set(FloatTag(), c.undamped)),
        lr(hn::Set(FloatTag(), -c.lr)),
        decays(c.decay != 0),
        first(c.first) {}

  TransformLanes transform;
  Floats decay, momentum, undamped, lr;
  bool decays;  // 0 * w is NaN where w is infinite
  bool first;
};

template <Momentum kind>
HWY_INLINE void update_lanes(const SgdLanes& c, float* parameter, const float* gradient,
                             [[maybe_unused]] float* momentum_buffer) {
  const FloatTag tag;
  prefetch_ahead(parameter);
  prefetch_ahead(gradient);
  if constexpr (kind != Momentum::none) prefetch_ahead(momentum_buffer);
  Floats w = hn::LoadU(tag, parameter);
  Floats g = c.transform(hn::LoadU(tag, gradient));
  if (c.decays) g = hn::MulAdd(w, c.decay, g);
  if constexpr (kind != Momentum::none) {
    Floats b =
        c.first ? g
                : hn::MulAdd(g, c.undamped, hn::Mul(hn::LoadU(tag, momentum_buffer), c.momentum));
    hn::StoreU(b, tag, momentum_buffer);
    g = kind == Momentum::nesterov ? hn::MulAdd(b, c.momentum, g) : b;
  }
  hn::StoreU(hn::MulAdd(g, c.lr, w), tag, parameter);
}

template <Momentum kind>
void update_rest(const SgdLanes& c, SgdSpan span, std::size_t begin) {
  constexpr bool buffered = kind != Momentum::none;
  std::size_t count = static_cast<std::size_t>(span.count) - begin;
  if (count == 0) return;
  LaneBuffer<float> parameter(span.parameter + begin, count),
      gradient(span.gradient + begin, count);
  LaneBuffer<float> momentum(buffered ? span.momentum_buffer + begin : nullptr,
                             buffered ? count : 0);
  update_lanes<kind>(c, parameter.values, gradient.values, momentum.values);
  parameter.store(span.parameter + begin);
  if constexpr (buffered) momentum.store(span.momentum_buffer + begin);
}

// `span` is a copy: see adam_kernel.cc.
template <Momentum kind>
void update_span(const SgdLanes& c, SgdSpan span) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  auto count = static_cast<std::size_t>(span.count);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    update_lanes<kind>(c, span.parameter + i, span.gradient + i,
                       kind == Momentum::none ? nullptr : span.momentum_buffer + i);
  update_rest<kind>(c, span, i);
}

void UpdateSgd(const SgdConstants& constants, const SgdSpan& span) {
  const SgdLanes lanes(constants);
  if (span.momentum_buffer == nullptr)
    update_span<Momentum::none>(lanes, span);
  else if (constants.nesterov)
    update_span<Momentum::nesterov>(lanes, span);
  else
    update_span<Momentum::plain>(lanes, span);
}

}  // namespace
}  // namespace lockstep::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::optim {
namespace {
HWY_EXPORT(UpdateSgd);
}  // namespace

void update_sgd(const SgdConstants& constants, const SgdSpan& span) {
  HWY_DYNAMIC_DISPATCH(UpdateSgd)(constants, span);
}

}  // namespace lockstep::optim
#endif
