// Compiled once per instruction set (Highway's foreach_target); the set is chosen at run time.
#include "optim/update_kernel.h"

#include "optim/prefetch.h"

#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/update_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "optim/lanes.h"

struct AdamLanes {
  explicit AdamLanes(const AdamConstants& c)
      : transform(c.factor, c.limit),
        decay(hn::Set(FloatTag(), c.decay)),
        decay_factor(hn::Set(FloatTag(), c.decay_factor)),
        beta1(hn::Set(FloatTag(), c.beta1)),
        new1(hn::Set(FloatTag(), c.new1)),
        beta2(hn::Set(FloatTag(), c.beta2)),
        new2(hn::Set(FloatTag(), c.new2)),
        unbias(hn::Set(FloatTag(), c.unbias)),
        eps(hn::Set(FloatTag(), c.eps)),
        step_size(hn::Set(FloatTag(), c.step_size)),
        decays(c.decay != 0) {}

  TransformLanes transform;
  Floats decay, decay_factor, beta1, new1, beta2, new2, unbias, eps, step_size;
  bool decays;  // 0 * w is NaN where w is infinite
};

// Loads and stores m and v in the format of their memory.
struct AsFloats {
  using Stored = float;
  HWY_INLINE static Floats load(const float* from) { return hn::LoadU(FloatTag(), from); }
  HWY_INLINE void store(Floats m, Floats v, float* average, float* square, std::size_t) const {
    hn::StoreU(m, FloatTag(), average);
    hn::StoreU(v, FloatTag(), square);
  }
};

struct AsBFloat16 {
  using Stored = std::uint16_t;
  HWY_INLINE static Floats load(const std::uint16_t* from) {
    return widened_bfloat16(hn::LoadU(HalfBits(), from));
  }
  HWY_INLINE void store(Floats m, Floats v, std::uint16_t* average, std::uint16_t* square,
                        std::size_t place) const {
    Words words = random_words(rounding, place);
    hn::StoreU(narrowed_bfloat16(m, stream_of(words, 0)), HalfBits(), average);
    hn::StoreU(narrowed_bfloat16(v, stream_of(words, 1)), HalfBits(), square);
  }

  const StochasticRounding& rounding;
};

// Compile-time options of a loop.
template <class State, bool is_amsgrad, bool is_transformed>
struct Kind {
  using Format = State;
  static constexpr bool amsgrad = is_amsgrad;
  static constexpr bool transformed = is_transformed;  // the gradient is scaled or clamped first
};

// `at` points to one vector of each array; its count is not used.
template <class Kind, class Span>
HWY_INLINE void update_adam_lanes(const AdamLanes& c, const typename Kind::Format& format,
                                  const Span& at, std::size_t place) {
  const FloatTag tag;
  prefetch_ahead(at.parameter);
  prefetch_ahead(at.gradient);
  prefetch_ahead(at.average);
  prefetch_ahead(at.square);
  if constexpr (Kind::amsgrad) prefetch_ahead(at.greatest_square);
  Floats w = hn::LoadU(tag, at.parameter), g = hn::LoadU(tag, at.gradient);
  if constexpr (Kind::transformed) {
    g = c.transform(g);
    if (c.decays) g = hn::MulAdd(w, c.decay, g);
  }
  w = hn::Mul(w, c.decay_factor);
  Floats m = hn::MulAdd(g, c.new1, hn::Mul(format.load(at.average), c.beta1));
  Floats v = hn::MulAdd(hn::Mul(g, c.new2), g, hn::Mul(format.load(at.square), c.beta2));
  format.store(m, v, at.average, at.square, place);
  if constexpr (Kind::amsgrad) {
    v = hn::Max(hn::LoadU(tag, at.greatest_square), v);
    hn::StoreU(v, tag, at.greatest_square);
  }
  Floats denominator = hn::MulAdd(hn::Sqrt(v), c.unbias, c.eps);
  w = hn::Sub(w, hn::Div(hn::Mul(c.step_size, m), denominator));
  hn::StoreU(w, tag, at.parameter);
}

// Updates the remaining elements, which do not fill a vector. It computes whole vectors, so that an
// element's bits do not depend on its index.
template <class Kind, class Span>
void update_adam_rest(const AdamLanes& c, const typename Kind::Format& format, Span span,
                      std::size_t begin) {
  using Stored = typename Kind::Format::Stored;
  std::size_t count = static_cast<std::size_t>(span.count) - begin;
  if (count == 0) return;
  LaneBuffer<float> parameter(span.parameter + begin, count),
      gradient(span.gradient + begin, count);
  LaneBuffer<Stored> average(span.average + begin, count), square(span.square + begin, count);
  LaneBuffer<float> greatest(Kind::amsgrad ? span.greatest_square + begin : nullptr,
                             Kind::amsgrad ? count : 0);
  const Span at{parameter.values, gradient.values, average.values, square.values, greatest.values};
  update_adam_lanes<Kind>(c, format, at, begin);
  parameter.store(span.parameter + begin);
  average.store(span.average + begin);
  square.store(span.square + begin);
  if constexpr (Kind::amsgrad) greatest.store(span.greatest_square + begin);
}

// `span` is a copy, so that stores cannot alias its pointers, which then stay in registers.
template <class Kind, class Span>
void update_adam_span(const AdamLanes& c, const typename Kind::Format& format, Span span) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  auto count = static_cast<std::size_t>(span.count);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Span at{span.parameter + i, span.gradient + i, span.average + i, span.square + i,
                  Kind::amsgrad ? span.greatest_square + i : nullptr};
    update_adam_lanes<Kind>(c, format, at, i);
  }
  update_adam_rest<Kind>(c, format, span, i);
}

template <class State, class Span>
void update_adam_kind(const AdamConstants& c, const State& format, const Span& span) {
  const AdamLanes lanes(c);
  bool transformed = c.factor != 1 || c.decay != 0 || c.limit <= hwy::HighestValue<float>();
  bool amsgrad = span.greatest_square != nullptr;
  if (amsgrad && transformed) return update_adam_span<Kind<State, true, true>>(lanes, format, span);
  if (amsgrad) return update_adam_span<Kind<State, true, false>>(lanes, format, span);
  if (transformed) return update_adam_span<Kind<State, false, true>>(lanes, format, span);
  update_adam_span<Kind<State, false, false>>(lanes, format, span);
}

void UpdateAdam(const AdamConstants& constants, const AdamSpan& span) {
  update_adam_kind(constants, AsFloats{}, span);
}

void UpdateSmallAdam(const AdamConstants& constants, const SmallAdamSpan& span,
                     const StochasticRounding& rounding) {
  update_adam_kind(constants, AsBFloat16{rounding}, span);
}

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
HWY_INLINE void update_sgd_lanes(const SgdLanes& c, float* parameter, const float* gradient,
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
void update_sgd_rest(const SgdLanes& c, SgdSpan span, std::size_t begin) {
  constexpr bool buffered = kind != Momentum::none;
  std::size_t count = static_cast<std::size_t>(span.count) - begin;
  if (count == 0) return;
  LaneBuffer<float> parameter(span.parameter + begin, count),
      gradient(span.gradient + begin, count);
  LaneBuffer<float> momentum(buffered ? span.momentum_buffer + begin : nullptr,
                             buffered ? count : 0);
  update_sgd_lanes<kind>(c, parameter.values, gradient.values, momentum.values);
  parameter.store(span.parameter + begin);
  if constexpr (buffered) momentum.store(span.momentum_buffer + begin);
}

// `span` is a copy: see update_adam_span().
template <Momentum kind>
void update_sgd_span(const SgdLanes& c, SgdSpan span) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  auto count = static_cast<std::size_t>(span.count);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    update_sgd_lanes<kind>(c, span.parameter + i, span.gradient + i,
                           kind == Momentum::none ? nullptr : span.momentum_buffer + i);
  update_sgd_rest<kind>(c, span, i);
}

void UpdateSgd(const SgdConstants& constants, const SgdSpan& span) {
  const SgdLanes lanes(constants);
  if (span.momentum_buffer == nullptr)
    update_sgd_span<Momentum::none>(lanes, span);
  else if (constants.nesterov)
    update_sgd_span<Momentum::nesterov>(lanes, span);
  else
    update_sgd_span<Momentum::plain>(lanes, span);
}

}  // namespace
}  // namespace lockstep::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::optim {
namespace {
HWY_EXPORT(UpdateAdam);
HWY_EXPORT(UpdateSmallAdam);
HWY_EXPORT(UpdateSgd);
}  // namespace

void update_adam(const AdamConstants& constants, const AdamSpan& span) {
  HWY_DYNAMIC_DISPATCH(UpdateAdam)(constants, span);
}

void update_adam(const AdamConstants& constants, const SmallAdamSpan& span,
                 const StochasticRounding& rounding) {
  HWY_DYNAMIC_DISPATCH(UpdateSmallAdam)(constants, span, rounding);
}

void update_sgd(const SgdConstants& constants, const SgdSpan& span) {
  HWY_DYNAMIC_DISPATCH(UpdateSgd)(constants, span);
}

}  // namespace lockstep::optim
#endif
