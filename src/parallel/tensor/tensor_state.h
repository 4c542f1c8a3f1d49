// TensorParallelState: a module whose parameters are sharded over the ranks of an axis `tp`, or
// replicated over the ranks of an axis `cp`, or both.
//
// It is made in two phases; between them, another strategy can replicate or shard this rank's
// parts:
//
//   auto state = std::make_shared<TensorParallelState>(module, tensors, how, all);   // cuts
//   state->train(fully_shard(state->parts(), ranks));                                // takes over
#pragma once

#include "module/checks.h"
#include "parallel/backward_hooks.h"
#include "parallel/handle_state.h"
#include "parallel/tensor/tensor_parallel_parameter.h"

#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/tensor/plan.h>

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::tensor_parallel {

// Applies a plan of tensor parallelism (lockstep/parallel/tensor/plan.h) to a module's tensors.
struct PlannedParameter {
  NamedParameter parameter;
  Placement placement;
  int pattern = -1;  // index in the plan; -1: unmatched
};

// Returns each parameter once, in the module's order. Throws InvalidArgument as describe() does.
[[nodiscard]] std::vector<PlannedParameter> planned(const TensorPlan& plan,
                                                    const torch::nn::Module& module, int ranks);

// BackwardClock: measures the phases of steps under tensor parallelism, where gradients of the
// module's parameters arrive one by one and there is no reduction at the end.
//
// Not thread-safe: called by the parameters' nodes, one at a time, and by the handle.
class BackwardClock final : public std::enable_shared_from_this<BackwardClock> {
 public:
  // `waited`: returns the seconds of waits so far. `averages`: returns true if an update may
  // follow.
  BackwardClock(std::function<double()> waited, std::function<bool()> averages)
      : clock_(std::move(waited)), averages_(std::move(averages)) {}

  void zero_grad() { clock_.zero_grad(); }
  // Call when a parameter gets a gradient.
  void on_gradient() {
    if (step_ == nullptr) {
      clock_.first_gradient();
      step_ = std::make_shared<Observer>(weak_from_this());
    }
    step_->watch();
  }
  [[nodiscard]] StepTiming total() const { return clock_.total(); }

 private:
  using Observer = parallel::StepObserver<BackwardClock>;
  friend Observer;

  // If a strategy trains the parts, its step ends before this clock's.
  void on_backward_end(bool nested) {
    if (step_ == nullptr) return;
    if (is_ending_) return end(averages_());
    if (!step_->is_over(nested, /*complete=*/false)) return;
    is_ending_ = true;
    parallel::watch_backward(step_);
  }
  void on_backward_failed() noexcept { end(false); }
  void end(bool averaged) {
    is_ending_ = false;
    if (std::exchange(step_, nullptr) != nullptr) clock_.backward_ended(averaged);
  }

  parallel::StepClock clock_;
  std::function<bool()> averages_;
  std::shared_ptr<Observer> step_;  // null: no backward() is running
  bool is_ending_ = false;
};

}  // namespace lockstep::tensor_parallel

namespace lockstep {

// How a module's tensors become global ones. The same on all ranks.
struct TensorCut {
  TensorPlan plan = {};  // along `tp`; an empty one replicates every parameter
  bool sequence_parallel = false;
  int sequence_dim = 1;
  bool attention_by_heads = false;  // along `cp`
};

class TensorParallelState final : public parallel::CompositeState {
 public:
  // Collective over `tensors`, a mesh of the axes `tp` and `cp`. Shards the parameters of a module
  // that parallelize() has checked; they have no values until train(). `all`: the axes of `tensors`
  // and of train()'s handle, returned by mesh() and group().
  TensorParallelState(std::shared_ptr<torch::nn::Module> module, const Mesh& tensors,
                      const TensorCut& how, const Mesh& all);
  // If train() was not called, the module's parameters stay plain global tensors.
  ~TensorParallelState() override;

  // Local. Returns a module of this rank's parts: the leaves of each parameter, and the buffers.
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& parts() const { return parts_; }
  // Local; call once. Turns the module's parameters into global tensors whose gradients go to the
  // parts. `of_parts`: a handle on parts(), not attached if no other rank has copies or shards of
  // them.
  void train(Handle of_parts);

  void detach() override;
  [[nodiscard]] std::vector<Part> named_parameters() const override;
  void zero_grad(bool set_to_none) override;
  [[nodiscard]] std::vector<Part> state_parts() override;
  [[nodiscard]] HandleMemory memory() const override;
  [[nodiscard]] double seconds_waited() const override;
  [[nodiscard]] StepTiming timing() const override { return clock_->total(); }

 private:
  using TensorParallelParameter = tensor_parallel::TensorParallelParameter;

  void part_all(const TensorCut& how);
  void set_hints(const TensorCut& how,
                 const std::vector<tensor_parallel::PlannedParameter>& planned);
  void hold_parts();
  [[nodiscard]] std::string take_parts();
  void attach_all();
  void start_clock();
  [[nodiscard]] const TensorParallelParameter& sharded(const at::Tensor& tensor) const;
  [[nodiscard]] std::vector<Part> own_parts(std::vector<Part> parts) const;
  [[nodiscard]] std::vector<Part> own_state(std::vector<Part> parts) const;

  std::shared_ptr<torch::nn::Module> module_;
  const std::shared_ptr<Group> kept_group_;  // parts refer to it
  Group& group_ = *kept_group_;
  const Mesh tensors_;
  std::shared_ptr<tensor_parallel::GradientMarks> marks_ =
      std::make_shared<tensor_parallel::GradientMarks>();
  std::shared_ptr<const modules::ModuleWatch> watch_;
  std::vector<TensorParallelParameter> sharded_;         // parameters, then buffers
  std::unordered_map<const void*, std::size_t> place_;   // in it, by the module's tensor
  std::vector<tensor_parallel::HeldByLeaves> held_;      // until train()
  std::unordered_map<std::string, std::size_t> number_;  // in parted_, by the name of a leaf
  bool is_divided_ = false;                              // by handle_, which has all tensors
  std::shared_ptr<torch::nn::Module> parts_;
  Handle handle_;  // of them
  bool is_trained_ = false;
  std::shared_ptr<tensor_parallel::BackwardClock> clock_;
};

}  // namespace lockstep
