#include "global/spec.h"

#include <algorithm>
#include <numeric>

namespace lockstep::global {

Dims row_major_strides(at::IntArrayRef sizes) {
  Dims strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::int64_t>(sizes[i], 1);
  return strides;
}

Dims strides_in_order_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  c10::SmallVector<std::size_t, 5> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  Dims result(sizes.size(), 1);
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    result[order[i]] = stride;
    stride *= std::max<std::int64_t>(sizes[order[i]], 1);
  }
  return result;
}

}  // namespace lockstep::global
