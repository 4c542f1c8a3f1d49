// Compiled once per instruction set (Highway's foreach_target); the set is chosen at run time.
#include "measure/memory_mix.h"

#include "optim/prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "measure/memory_mix.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::bench::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <bool ahead>
void run_mix(MixSpan span, float one, float nothing) {
  const hn::ScalableTag<float> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const auto factor = hn::Set(tag, one), zero = hn::Set(tag, nothing);
  for (std::int64_t i = 0; i + lanes <= span.count; i += lanes) {
    if constexpr (ahead) {
      optim::prefetch_ahead(span.gradient + i);
      for (float* array : {span.parameter, span.average, span.square})
        optim::prefetch_ahead(array + i);
    }
    const auto added = hn::Mul(hn::LoadU(tag, span.gradient + i), zero);
    for (float* array : {span.parameter, span.average, span.square})
      hn::StoreU(hn::MulAdd(hn::LoadU(tag, array + i), factor, added), tag, array + i);
  }
}

void RunMix(const MixSpan& span, Mix mix, float one, float nothing) {
  mix == Mix::ahead ? run_mix<true>(span, one, nothing) : run_mix<false>(span, one, nothing);
}

}  // namespace
}  // namespace lockstep::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::bench {
namespace {
HWY_EXPORT(RunMix);
}  // namespace

void run_memory_mix(const MixSpan& span, Mix mix, float one, float nothing) {
  HWY_DYNAMIC_DISPATCH(RunMix)(span, mix, one, nothing);
}

}  // namespace lockstep::bench
#endif
