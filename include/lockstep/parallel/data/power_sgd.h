// PowerSGD (Vogels, Karimireddy and Jaggi 2019, arXiv:1905.13727): compresses gradients to products
// of two thin matrices.
//
// A gradient with n rows and m columns (the other dims flattened) becomes P Q^T with P of n x r and
// Q of m x r: r (n + m) numbers instead of n m. Each step is one subspace iteration: P = M Q is
// averaged over the ranks and orthonormalised, Q = M^T P is averaged. The difference between a
// rank's own gradient and the product is added to its next gradient (error feedback). All ranks
// compute the product from the same averages, so their models stay bit-identical if they have the
// same processor and number of threads; otherwise they differ by rounding, as in PyTorch: in that
// case, let a ModelAverager average them periodically.
//
// The error of a step has the loss scale of that step. If the scale changes (optim/grad_scaler.h),
// the next step adds the error at the old scale, once, by a factor too large or too small.
#pragma once

#include <lockstep/parallel/data/communication_hook.h>

#include <cstdint>
#include <memory>

#pragma GCC visibility push(default)

namespace lockstep {

// The comments give the names of PyTorch's PowerSGDState.
struct PowerSgdOptions {
  std::int64_t rank = 1;  // matrix_approximation_rank
  // The number of initial steps with exact averages, while gradients change fast
  // (start_powerSGD_iter).
  std::int64_t start_step = 1000;
  // A parameter is compressed if this times r (n + m) is less than n m; the other gradients
  // (biases) are averaged exactly, as one tensor.
  double min_compression_rate = 2;
  bool use_error_feedback = true;
  // If true, Q starts from that of the previous step; otherwise from random numbers, the same on
  // all ranks.
  bool warm_start = true;
  std::uint64_t seed = 0;
};

// Throws InvalidArgument for invalid options. The handle's constructor throws it if no parameter
// would be compressed because the rank is too large for every matrix.
//
// state(): "error.NAME" and "q.NAME" for each compressed parameter that has them, and "step". If a
// gradient contains inf or NaN on any rank, the average of that parameter is NaN and both entries
// stay unchanged. A hook belongs to one handle.
[[nodiscard]] std::shared_ptr<CommunicationHook> power_sgd(const PowerSgdOptions& options = {});

}  // namespace lockstep

#pragma GCC visibility pop
