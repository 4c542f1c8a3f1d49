// Communication hooks: what DistributedDataParallel does with a bucket whose gradients are
// complete, instead of averaging it over the group as it is. As in PyTorch
// (torch.distributed.algorithms.ddp_comm_hooks), and hooks compose:
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
// Each rank makes its own hook; all ranks make the same ones.
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

// Gradients that travel together: a value handle of one flat tensor.
class GradientBucket {
 public:
  // One parameter's place, in elements of the buffer. Complex numbers are pairs of reals: sizes end
  // with a 2.
  struct Place {
    NamedParameter parameter;
    std::int64_t offset = 0;
    std::vector<std::int64_t> sizes, strides;
  };

  GradientBucket(std::string name, int number, bool is_last, at::Tensor buffer,
                 std::shared_ptr<const std::vector<Place>> places,
                 std::optional<Duration> timeout = std::nullopt);

  // "bucket 0 (fc.weight ... fc.bias)": the same on all ranks, for the tags of calls.
  [[nodiscard]] const std::string& name() const { return name_; }
  // Buckets are numbered in the order in which they are given to the hook.
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool is_last() const { return is_last_; }

  // Deadline of the handle's collectives (DataParallelOptions::timeout), which the hook's should
  // have; absent: the group's.
  [[nodiscard]] std::optional<Duration> timeout() const { return timeout_; }

  // All gradients of this rank, and zeros between them: one dimension, real numbers. The hook may
  // write into it.
  [[nodiscard]] const at::Tensor& buffer() const { return buffer_; }
  [[nodiscard]] int size() const { return static_cast<int>(places_->size()); }
  [[nodiscard]] const NamedParameter& parameter(int i) const { return place(i).parameter; }
  // A view of the buffer with the parameter's sizes and strides.
  [[nodiscard]] at::Tensor gradient(int i) const;

  // The same places in another buffer of as many elements: what a wrapper gives to the hook that it
  // wraps.
  [[nodiscard]] GradientBucket with_buffer(at::Tensor buffer) const;

 private:
  [[nodiscard]] const Place& place(int i) const { return places_->at(static_cast<std::size_t>(i)); }

  std::string name_;
  int number_;
  bool is_last_;
  at::Tensor buffer_;
  std::shared_ptr<const std::vector<Place>> places_;
  std::optional<Duration> timeout_;
};

// The result of a hook for a bucket, which is there later.
class BucketFuture {
 public:
  // May post calls; what it returns is the result. It runs in the thread of backward() when all
  // gradients of this rank are there. Steps of different buckets run in turn, in the same order on
  // every rank: the first ones of all buckets, then the second ones.
  using Next = std::function<BucketFuture(at::Tensor values)>;

  // `values` count when the works have been waited for.
  BucketFuture(at::Tensor values, std::vector<Work> works = {});  // NOLINT: a tensor is one

  [[nodiscard]] BucketFuture then(Next next) &&;

  // For DistributedDataParallel. Blocks for the works, without what comes then.
  void wait();
  // Blocks for the works and runs the next step; false when there is none.
  bool advance();
  // After that.
  [[nodiscard]] const at::Tensor& values() const { return values_; }

 private:
  at::Tensor values_;
  std::vector<Work> works_;
  std::deque<Next> next_;
};

// Everything is called without gradient mode, by one thread at a time, in the same order on every
// rank. It may not use the handle. An exception that leaves run() or a later step ends the group
// (Aborted on the other ranks, which names the hook and the exception): no rank can know which
// calls are left out. Where backward() fails or a gradient is missing on some rank, run() is called
// for every bucket, with any values, and later steps are not.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  // Name and options in one line: equal on all ranks.
  [[nodiscard]] virtual std::string describe() const = 0;
  // When DistributedDataParallel is made. InvalidArgument refuses the parameters.
  virtual void attach(std::span<const NamedParameter> /*parameters*/) {}

  // Begins the reduction of a bucket. The result has the sizes and dtype of bucket.buffer(), which
  // it may be, and becomes the gradients: a hook divides by the group's size itself. Another shape
  // or dtype is a ReductionFailed, which ends the group as an exception of the hook does.
  [[nodiscard]] virtual BucketFuture run(const GradientBucket& bucket, Group& group) = 0;

  // What the hook keeps from step to step on this rank, by name; a program saves it with the model,
  // each rank its own. Between steps.
  [[nodiscard]] virtual std::map<std::string, at::Tensor> state() const { return {}; }
  // What state() has returned. After DistributedDataParallel has been made with the hook. BadInput
  // names what is unknown, missing or of another shape, and then nothing has changed.
  virtual void load_state(const std::map<std::string, at::Tensor>& state);

  // Whether gradients are averaged over all ranks of the handle in every step. Where they are not,
  // a Join that divides by the ranks that still have inputs is refused.
  [[nodiscard]] virtual bool averages_over_all() const { return true; }
  // Whether the models of the handle's ranks may differ, since gradients were not averaged over all
  // of them: the handle's state_parts(), by which checkpoints are written, is InvalidArgument then.
  [[nodiscard]] virtual bool models_may_differ() const { return false; }
  // The models of all ranks of `group` are the same now: averaged (by a ModelAverager that knows
  // the hook), or loaded. A hook that wraps another one passes both on.
  virtual void models_are_equal(const Group& /*group*/) {}
};

// The bucket's average over the group, in place, with the bucket's deadline. Of half precision the
// parts are divided before they are added, so that no sum overflows.
[[nodiscard]] BucketFuture average_of(const GradientBucket& bucket, Group& group);

// What happens without a hook.
[[nodiscard]] std::shared_ptr<CommunicationHook> average_hook();
// Gradients travel as bfloat16, or as half: a wrapper's hook gets buckets of that dtype. Numbers
// beyond half's largest (65504) become inf: scale the loss, or take bfloat16. Buckets that are not
// wider stay as they are.
[[nodiscard]] std::shared_ptr<CommunicationHook> bf16_compression(
    std::shared_ptr<CommunicationHook> inner = average_hook());
[[nodiscard]] std::shared_ptr<CommunicationHook> fp16_compression(
    std::shared_ptr<CommunicationHook> inner = average_hook());

// A hook that is a function. `name`: for messages, equal on all ranks.
[[nodiscard]] std::shared_ptr<CommunicationHook> hook_of(
    std::string name, std::function<BucketFuture(const GradientBucket&, Group&)> run);

}  // namespace lockstep

#pragma GCC visibility pop
