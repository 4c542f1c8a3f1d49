// ReductionFailed: the error of a backward() whose gradients could not be averaged.
#pragma once

#include <lockstep/base/error.h>

#pragma GCC visibility push(default)

namespace lockstep {

// A backward() could not be averaged, on every rank for the same reason: parameters that had no
// part in it, a gradient that is sparse, or, under DistributedDataParallel, an exception on some
// rank. The group lives; gradients are undefined until zero_grad(). Exceptions under fully_shard()
// end the handle instead (sharded/fully_shard.h).
class ReductionFailed : public Error {
  using Error::Error;
};

}  // namespace lockstep

#pragma GCC visibility pop
