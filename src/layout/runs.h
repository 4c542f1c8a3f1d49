// Runs: boxes of a row-major tensor whose elements are contiguous, as in a file. Pure arithmetic,
// thread-safe.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstdint>
#include <functional>
#include <span>

namespace lockstep::layout {

// Calls action(run) for runs that together are `box`, in the order of a row-major tensor of
// `sizes`, each with at most `most` elements. Throws InvalidArgument unless `most` is positive and
// the box lies in the tensor.
void for_each_run(const Box& box, std::span<const std::int64_t> sizes, std::int64_t most,
                  const std::function<void(const Box&)>& action);

// Returns the number of elements of a row-major tensor of `sizes` before the first one of `box`.
[[nodiscard]] std::int64_t first_element(const Box& box, std::span<const std::int64_t> sizes);

}  // namespace lockstep::layout
