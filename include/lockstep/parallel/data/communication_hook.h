// Communication hooks: an action of DistributedDataParallel on a bucket with complete gradients,
// instead of averaging it over the group. As in PyTorch
// (torch.distributed.algorithms.ddp_comm_hooks); hooks can be composed:
//
//   lockstep::DistributedDataParallel ddp(
//       model, world, {.hook = lockstep::bf16_compression(lockstep::power_sgd({.rank = 2}))});
//
// A hook is a class derived from CommunicationHook, or a function:
//
//   auto hook = lockstep::hook_of("clip", [](const lockstep::GradientBucket& bucket,
//                                            lockstep::Group& group) {
//     bucket.buffer().clamp_(-1, 1);
//     return lockstep::average_of(bucket, group);
//   });
//
// Each rank makes its own hook; the hooks of all ranks must be the same.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// Gradients that are communicated together: a value handle of one flat tensor.
class GradientBucket {
 public:
  // The place of one parameter, in elements of the buffer. Complex numbers are pairs of reals:
  // their sizes end with a 2.
  struct BucketEntry {
    NamedParameter parameter;
    std::int64_t offset = 0;
    std::vector<std::int64_t> sizes, strides;
  };

  GradientBucket(std::string name, int number, bool is_last, at::Tensor buffer,
                 std::shared_ptr<const std::vector<BucketEntry>> places,
                 std::optional<Duration> timeout = std::nullopt);

  // "bucket 0 (fc.weight ... fc.bias)": the same on all ranks; for the tags of calls.
  [[nodiscard]] const std::string& name() const { return name_; }
  // Buckets are numbered in the order in which the hook receives them.
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool is_last() const { return is_last_; }

  // The timeout of the handle's collectives (DistributedDataParallelOptions::timeout), which the
  // hook's collectives should use; std::nullopt: the group's.
  [[nodiscard]] std::optional<Duration> timeout() const { return timeout_; }

  // All gradients of this rank, with zeros between them: one dimension, real numbers. The hook may
  // write to it.
  [[nodiscard]] const at::Tensor& buffer() const { return buffer_; }
  [[nodiscard]] int size() const { return static_cast<int>(places_->size()); }
  [[nodiscard]] const NamedParameter& parameter(int i) const { return place(i).parameter; }
  // Returns a view of the buffer with the parameter's sizes and strides.
  [[nodiscard]] at::Tensor gradient(int i) const;

  // Returns a bucket with the same places in another buffer of the same size, for a wrapper to pass
  // to its inner hook.
  [[nodiscard]] GradientBucket with_buffer(at::Tensor buffer) const;

 private:
  [[nodiscard]] const BucketEntry& place(int i) const {
    return places_->at(static_cast<std::size_t>(i));
  }

  std::string name_;
  int number_;
  bool is_last_;
  at::Tensor buffer_;
  std::shared_ptr<const std::vector<BucketEntry>> places_;
  std::optional<Duration> timeout_;
};

// The future result of a hook for a bucket.
class BucketFuture {
 public:
  // May post calls; returns the result. Runs in the thread of backward() when all gradients of this
  // rank are complete. Steps of different buckets run round-robin, in the same order on every rank:
  // the first steps of all buckets, then the second ones.
  using Next = std::function<BucketFuture(at::Tensor values)>;

  // `values` are valid after the works have completed.
  BucketFuture(at::Tensor values, std::vector<Work> works = {});  // NOLINT: a tensor is one

  [[nodiscard]] BucketFuture then(Next next) &&;

  // For DistributedDataParallel. Blocks until the works have completed, but does not run later
  // steps.
  void wait();
  // Blocks until the works have completed, and runs the next step; returns false if there is no
  // next step.
  bool advance();
  // Call after advance() has returned false.
  [[nodiscard]] const at::Tensor& values() const { return values_; }

 private:
  at::Tensor values_;
  std::vector<Work> works_;
  std::deque<Next> next_;
};

// All functions are called without grad mode, by one thread at a time, in the same order on every
// rank, and must not use the handle. An exception from run() or a later step ends the group
// (Aborted on the other ranks, with the names of hook and exception), because no rank can know
// which calls are missing. If backward() fails or a gradient is missing on some rank, run() is
// called for every bucket with arbitrary values, and later steps are not called.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  // Returns name and options in one line, equal on all ranks.
  [[nodiscard]] virtual std::string describe() const = 0;
  // Called when DistributedDataParallel is constructed. Throws InvalidArgument to refuse the
  // parameters.
  virtual void attach(std::span<const NamedParameter> /*parameters*/) {}

  // Begins the reduction of a bucket. The result must have the sizes and dtype of bucket.buffer(),
  // and may be that buffer. It becomes the gradients, so the hook itself must divide by the group's
  // size. For another shape or dtype, backward() throws ReductionFailed, which ends the group like
  // an exception of the hook.
  [[nodiscard]] virtual BucketFuture run(const GradientBucket& bucket, Group& group) = 0;

  // Returns this rank's persistent state of the hook by name; each rank saves its own with the
  // model. Call between steps.
  [[nodiscard]] virtual std::map<std::string, at::Tensor> state() const { return {}; }
  // Restores a result of state(). Call after DistributedDataParallel was constructed with the hook.
  // Throws BadInput, which names an unknown or missing entry or one of another shape; nothing is
  // changed in that case.
  virtual void load_state(const std::map<std::string, at::Tensor>& state);

  // Returns true if every step averages gradients over all ranks of the handle. If false, a Join
  // that divides by the number of ranks with inputs is refused.
  [[nodiscard]] virtual bool averages_over_all() const { return true; }
  // Returns true if the models of the handle's ranks may differ because gradients were not averaged
  // over all of them. The handle's state_parts(), which checkpoints use, then throws
  // InvalidArgument.
  [[nodiscard]] virtual bool models_may_differ() const { return false; }
  // Called when the models of all ranks of `group` are equal: averaged (by a ModelAverager that
  // knows the hook), or loaded. A hook that wraps another one must forward both functions.
  virtual void models_are_equal(const Group& /*group*/) {}
};

// Averages the bucket over the group in place, with the bucket's timeout. Half precision is divided
// before it is added, so that no sum overflows.
[[nodiscard]] BucketFuture average_of(const GradientBucket& bucket, Group& group);

// The default if no hook is given.
[[nodiscard]] std::shared_ptr<CommunicationHook> average_hook();
// Compress gradients to bfloat16 or half for communication: the inner hook receives buckets of that
// dtype. Numbers beyond half's maximum (65504) become inf: scale the loss, or use bfloat16. Buckets
// whose dtype is not wider are not converted.
[[nodiscard]] std::shared_ptr<CommunicationHook> bf16_compression(
    std::shared_ptr<CommunicationHook> inner = average_hook());
[[nodiscard]] std::shared_ptr<CommunicationHook> fp16_compression(
    std::shared_ptr<CommunicationHook> inner = average_hook());

// Makes a hook from a function. `name`: for messages, equal on all ranks.
[[nodiscard]] std::shared_ptr<CommunicationHook> hook_of(
    std::string name, std::function<BucketFuture(const GradientBucket&, Group&)> run);

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
// the next step adds the error at the old scale: once, the error is too large or too small by the
// ratio of the scales.
//
// The comments give the names of PyTorch's PowerSGDState.
struct PowerSgdOptions {
  std::int64_t rank = 1;  // matrix_approximation_rank
  // The number of initial steps with exact averages, while gradients change fast
  // (start_powerSGD_iter).
  std::int64_t start_step = 1000;
  // A parameter is compressed if min_compression_rate * r (n + m) < n m. Other gradients (biases)
  // are averaged exactly, as one tensor.
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
