// Execution: runs this rank's actions of a schedule for one step.
#pragma once

#include "parallel/pipeline/batch.h"
#include "parallel/pipeline/mailbox.h"
#include "parallel/pipeline/stage_run.h"

#include <lockstep/parallel/pipeline/pipeline.h>

#include <functional>
#include <map>
#include <optional>

namespace lockstep::pipeline {

// The state of a rank that is common to all its steps.
struct ExecutionParts {
  std::map<int, StageRun>& stages;  // this rank's
  const PipelineLoss& loss;
  std::function<void(const plan::Action& action)> before_backward;
};

class Execution {
 public:
  // `schedule`: of this step; only forwards unless it is a training step. All arguments must
  // outlive this object.
  Execution(const plan::Schedule& schedule, const Batch& batch, StepKind kind, Mailbox& mailbox,
            ExecutionParts parts)
      : schedule_(schedule),
        batch_(batch),
        kind_(kind),
        mailbox_(mailbox),
        parts_(std::move(parts)) {}

  // Runs this rank's actions. `now` is the current one, for messages.
  void run(const std::vector<plan::Action>& actions, std::optional<plan::Action>& now);

  // Returns the sum of the micro-batches' losses, weighted by their shares; undefined on ranks
  // without the last stage.
  [[nodiscard]] const at::Tensor& loss() const { return loss_; }
  // Returns the last stage's outputs of all micro-batches, if the call requests them.
  [[nodiscard]] Tensors outputs() const;
  [[nodiscard]] Pipeline::Measured measured(const std::vector<int>& stages) const;

 private:
  struct Spent {
    double seconds = 0;
    int times = 0;
  };

  void forward(const plan::Action& action);
  [[nodiscard]] Tensors end_forward(const plan::Action& action, const Tensors& outputs);
  void backward(const plan::Action& action);
  void weight(const plan::Action& action);
  void pass(const plan::Result& result, Tensors tensors);
  [[nodiscard]] Tensors take(const plan::Result& result, int stage);
  // Returns the gradients with which backward() of a micro-batch begins.
  [[nodiscard]] Tensors root_gradients(const plan::Action& action);
  template <typename Body>
  auto timed(const plan::Action& action, Body body);
  [[nodiscard]] bool is_last(int stage) const { return stage + 1 == schedule_.stages; }

  const plan::Schedule& schedule_;
  const Batch& batch_;
  const StepKind kind_;
  Mailbox& mailbox_;
  ExecutionParts parts_;
  std::map<std::uint64_t, Tensors> here_;  // passed between stages of this rank
  std::map<int, at::Tensor> losses_;       // by micro-batch, until its backward; without history
  std::map<int, Tensors> outputs_;         // by micro-batch
  at::Tensor loss_;
  std::map<std::pair<int, char>, Spent> spent_;
  double began_ = -1, ended_ = 0;
};

}  // namespace lockstep::pipeline
