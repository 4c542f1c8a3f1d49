#include "optim/threads.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/arange.h>

namespace lockstep::optim {

// at::parallel_for is a template that runs serially in code compiled without OpenMP, and a second
// OpenMP runtime beside LibTorch's should be avoided. But the loop of at::TensorIterator is
// compiled into LibTorch: an iterator over the call indices makes LibTorch's threads run the calls.
void for_each_in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  if (count <= 1 || at::get_num_threads() == 1 || at::in_parallel_region()) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return;
  }
  at::Tensor numbers = at::arange(static_cast<std::int64_t>(count), at::kLong);
  at::TensorIterator iterator = at::TensorIterator::borrowing_nullary_op(numbers);
  iterator.for_each(
      [&](char** data, const std::int64_t* strides, std::int64_t length) {
        for (std::int64_t i = 0; i < length; ++i)
          work(static_cast<std::size_t>(
              *reinterpret_cast<const std::int64_t*>(data[0] + i * strides[0])));
      },
      /*grain_size=*/1);
}

}  // namespace lockstep::optim
