// PowerSGD (Vogels, Karimireddy and Jaggi 2019, arXiv:1905.13727): gradients travel as products of
// two thin matrices.
//
// A gradient of n rows and m columns (the other dims flattened) becomes P Q^T with P of n x r and Q
// of m x r: r (n + m) numbers instead of n m. Each step is one subspace iteration: P = M Q is
// averaged over the ranks and orthonormalised, Q = M^T P is averaged. What the product lacks of a
// rank's own gradient is added to its next one (error feedback). All ranks make the product of the
// same averages, so their models stay equal to the bit where their processors and numbers of
// threads are alike, and up to rounding elsewhere, as in PyTorch: there let a ModelAverager level
// them now and then.
//
// The error of a step has the loss scale of that step. Where a scale changes (optim/grad_scaler.h),
// the next step adds the error of the old one: by a factor too large or too small, once.
#pragma once

#include <lockstep/parallel/data/communication_hook.h>

#include <cstdint>
#include <memory>

#pragma GCC visibility push(default)

namespace lockstep {

// The names behind the fields are those of PyTorch's PowerSGDState.
struct PowerSgdOptions {
  std::int64_t rank = 1;  // matrix_approximation_rank
  // Steps that are averaged exactly first, while gradients change fast (start_powerSGD_iter).
  std::int64_t start_step = 1000;
  // A parameter is compressed when this times r (n + m) is less than n m; the others (biases) are
  // averaged exactly, as one.
  double min_compression_rate = 2;
  bool use_error_feedback = true;
  // Q begins with that of the step before; else with random numbers, the same on all ranks.
  bool warm_start = true;
  std::uint64_t seed = 0;
};

// InvalidArgument for options that make no sense, and when the handle is made: where no parameter
// would be compressed, because the rank is too large for every matrix.
//
// state(): "error.NAME" and "q.NAME" for each compressed parameter that has one, and "step". A
// gradient with inf or NaN on any rank gives an average of NaN for its parameter and leaves both as
// they were. A hook belongs to one handle.
[[nodiscard]] std::shared_ptr<CommunicationHook> power_sgd(const PowerSgdOptions& options = {});

}  // namespace lockstep

#pragma GCC visibility pop
