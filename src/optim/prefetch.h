// What a pass over several large arrays tells the processor of the memory that it comes to.
#pragma once

#include <hwy/cache_control.h>

#include <cstddef>
#include <cstdint>

namespace lockstep::optim {

// The processor's own prefetching begins anew at every page (1,024 floats), and a loop with a root
// and a division fills its window before the next loads are in it. `lockstep bench optimizer` shows
// what it is worth; from 64 to 192 is alike on Zen 3, and 512 is no gain.
inline constexpr std::size_t elements_ahead = 96;

// Asks for what a loop reads when it comes to `elements_ahead` elements behind `from`. That may be
// behind the end of the array: then nothing happens.
template <class T>
HWY_INLINE void prefetch_ahead(const T* from) {
  const auto address = reinterpret_cast<std::uintptr_t>(from) + elements_ahead * sizeof(T);
  hwy::Prefetch(reinterpret_cast<const T*>(address));
}

}  // namespace lockstep::optim
