#include "module/slices.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace lockstep::modules {

std::vector<int> dim_order_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<int> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  if (strides == at::IntArrayRef(c10::contiguous_strides(sizes))) return {};
  std::ranges::stable_sort(order, std::greater(),
                           [&](int dim) { return strides[static_cast<std::size_t>(dim)]; });
  return std::ranges::is_sorted(order) ? std::vector<int>() : order;
}

at::Tensor box_in_part(const at::Tensor& part, const layout::TensorSlice& slice,
                       const layout::Box& box) {
  layout::Strided place = layout::place_of(slice, box);
  return part.as_strided(box.sizes, place.strides, part.storage_offset() + place.offset);
}

at::Tensor box_in_whole(const at::Tensor& whole, const layout::Box& box) {
  at::Tensor view = whole;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim)
    view = view.narrow(static_cast<std::int64_t>(dim), box.offsets[dim], box.sizes[dim]);
  return view;
}

}  // namespace lockstep::modules
