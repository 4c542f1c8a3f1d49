// What the engines' own arithmetic (comm/kernels/combine.h) calls the element types of LibTorch.
#pragma once

#include "comm/call/dtype.h"

#include <c10/core/ScalarType.h>

namespace lockstep {

// A type that only moves is so many opaque bytes. InvalidArgument where there are none of its size.
[[nodiscard]] DType dtype_of(at::ScalarType dtype);

}  // namespace lockstep
