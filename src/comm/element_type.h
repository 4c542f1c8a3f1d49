// What the engines' own arithmetic (comm/shm/combine.h) calls the element types of LibTorch.
#pragma once

#include "comm/shm/dtype.h"

#include <c10/core/ScalarType.h>

namespace lockstep {

// InvalidArgument for a type that only moves.
[[nodiscard]] shm::DType shm_type_of(at::ScalarType dtype);

}  // namespace lockstep
