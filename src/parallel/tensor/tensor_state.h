// TensorParallelState: what stands behind the handle of parallelize_tensors().
#pragma once

#include "module/watch.h"
#include "parallel/composite_state.h"
#include "parallel/tensor/backward_clock.h"
#include "parallel/tensor/gradient_marks.h"
#include "parallel/tensor/parted_tensor.h"

#include <lockstep/parallel/tensor/tensor_parallel.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep {

class TensorParallelState : public parallel::CompositeState {
 public:
  // `tensors`: a mesh of the axis `tp`, or of `cp` (context_parallel.h), or of both.
  TensorParallelState(std::shared_ptr<torch::nn::Module> module, const Mesh& tensors,
                      const TensorPlan& plan, TensorParallelOptions options);

  [[nodiscard]] const std::string& plan() const { return plan_; }
  [[nodiscard]] const Mesh& tensors() const { return *tensors_; }
  // Of the strategy that trains the parts; not attached where there is none.
  [[nodiscard]] const Handle& strategy() const { return handle_; }

  void detach() override;
  [[nodiscard]] std::vector<NamedPart> named_parameters() const override;
  void zero_grad(bool set_to_none) override;
  [[nodiscard]] std::vector<NamedPart> state_parts() override;
  [[nodiscard]] HandleMemory memory() const override;
  [[nodiscard]] double seconds_waited() const override;
  [[nodiscard]] StepTiming timing() const override { return clock_->total(); }
  [[nodiscard]] const Group& group() const override;
  [[nodiscard]] std::optional<Mesh> mesh() const override { return options_.mesh; }

 private:
  using PartedTensor = tensor_parallel::PartedTensor;

  [[nodiscard]] std::vector<std::string> option_lines() const;
  void check_options() const;
  void part_all(const TensorPlan& plan);
  void train_parts();
  [[nodiscard]] std::string take_parts();
  void attach_all();
  void start_clock();
  [[nodiscard]] const PartedTensor& parted(const at::Tensor& tensor) const;
  [[nodiscard]] std::vector<NamedPart> own_parts(std::vector<NamedPart> parts) const;
  [[nodiscard]] std::vector<NamedPart> own_state(std::vector<NamedPart> parts) const;

  std::shared_ptr<torch::nn::Module> module_;
  const std::shared_ptr<Group> kept_group_;  // here alone: parts refer to it
  Group& group_ = *kept_group_;
  const TensorParallelOptions options_;
  std::string plan_;
  std::optional<Mesh> tensors_;
  std::shared_ptr<tensor_parallel::GradientMarks> marks_ =
      std::make_shared<tensor_parallel::GradientMarks>();
  std::shared_ptr<const modules::ModuleWatch> watch_;
  std::vector<PartedTensor> parted_;                     // parameters, then buffers
  std::unordered_map<const void*, std::size_t> place_;   // in it, by the module's tensor
  std::vector<tensor_parallel::HeldByLeaves> held_;      // while the strategy is made
  std::unordered_map<std::string, std::size_t> number_;  // in parted_, by the name of a leaf
  bool is_divided_ = false;                              // by the strategy: it has all tensors
  std::shared_ptr<torch::nn::Module> parts_;             // what the strategy trains
  Handle handle_;                                        // of it
  std::shared_ptr<tensor_parallel::BackwardClock> clock_;
};

}  // namespace lockstep
