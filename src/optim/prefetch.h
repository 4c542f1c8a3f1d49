// Prefetch hints for a pass over several large arrays.
#pragma once

#include <hwy/cache_control.h>

#include <cstddef>
#include <cstdint>

namespace lockstep::optim {

// Explicit prefetching helps because the hardware prefetcher restarts at every page (1,024 floats),
// and a loop with a square root and a division fills the reorder window before the next loads are
// issued. The gain is shown by `lockstep-measure optimizer`; on Zen 3, all distances from 64 to 192
// perform alike, and 512 gains nothing.
inline constexpr std::size_t elements_ahead = 96;

// Prefetches the data `elements_ahead` elements after `from`. An address past the end of the array
// has no effect.
template <class T>
HWY_INLINE void prefetch_ahead(const T* from) {
  const auto address = reinterpret_cast<std::uintptr_t>(from) + elements_ahead * sizeof(T);
  hwy::Prefetch(reinterpret_cast<const T*>(address));
}

}  // namespace lockstep::optim
