// Checks parts of one tensor in different files.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace lockstep::checkpoint {

// Throws BadInput, with `name`, unless each element of a tensor of `sizes` is in exactly one of
// `boxes`. No box may be empty or exceed the tensor.
//
// Sweeps along one dim and compares only boxes that overlap in it: the dim with the fewest such
// pairs, which is zero if the tensor is divided along one dim. Returns the number of compared
// pairs.
std::size_t check_cover(const std::string& name, std::span<const std::int64_t> sizes,
                        std::span<const layout::Box> boxes);

}  // namespace lockstep::checkpoint
