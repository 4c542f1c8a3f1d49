// Execution: runs this rank's actions of a schedule for one step.
#pragma once

#include "parallel/pipeline/batch.h"
#include "parallel/pipeline/stage_run.h"
#include "plan/walk.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/plan/schedule.h>

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::pipeline {

// P2PExchange: the messages of one step between this rank and the others.
//
// The schedule determines the messages: the result of an action is sent to the rank that needs it.
// All ranks post in one order (plan/walk.h): at the position of an action that another rank
// executes, a rank posts the receive of its result, before its own next action.
//
// The receiving rank must know the sizes of the tensors that the previous stage sends. In steps of
// one kind (sizes of the batch, with or without gradients), micro-batches with equally many rows
// have tensors of equal sizes: a description precedes the tensors of the first such micro-batch,
// and is kept.

// The tensors that the forwards of one kind of step pass on, by stage and rows of the micro-batch.
using SpecCache = std::map<std::pair<int, std::int64_t>, Specs>;

class P2PExchange {
 public:
  // `order`: the actions of all ranks in this step, as plan::posting_order() returns them. `ranks`:
  // the rank of each stage. `device`: of received tensors. All references must stay valid during
  // the lifetime of this object.
  P2PExchange(Group& group, std::span<const plan::Action> order, const std::vector<int>& ranks,
              const Batch& batch, SpecCache& book, c10::Device device,
              std::optional<Duration> timeout)
      : group_(group),
        order_(order),
        ranks_(ranks),
        batch_(batch),
        book_(book),
        device_(device),
        timeout_(timeout) {}

  // Posts the receives that precede an action of this rank in the order. Blocks for descriptions
  // that the book lacks. Call before each own action.
  void begin(const plan::Action& own);
  // Posts the result of the latest action to the rank that needs it; does nothing if that is this
  // rank. The tag is "1F3", or "2I3" for the gradient that stage 2 gives to stage 1. Throws
  // InvalidArgument if the tensors differ from their description in the book.
  void send(const plan::Action& result, const Tensors& tensors);
  // Blocks until a result of another rank has arrived. begin() must have posted its receive.
  [[nodiscard]] Tensors receive(const plan::Action& result);
  // Blocks until all sent messages have arrived.
  void finish();

 private:
  struct Expected {
    Tensors tensors;
    std::vector<Work> works;
  };

  [[nodiscard]] int rank_of(int stage) const { return ranks_[static_cast<std::size_t>(stage)]; }
  // Returns the rank that needs a result of `stage`; none at the ends of the model.
  [[nodiscard]] std::optional<int> destination_of(const plan::Action& result) const;
  void post_receive(const plan::Action& result);
  // Returns the entry of the book that describes a result's tensors: the result is either their
  // values or their gradients.
  [[nodiscard]] SpecCache::key_type place_of(const plan::Action& result) const;
  [[nodiscard]] const Specs& specs_for(const plan::Action& result, int source);
  // Frees messages that have arrived before the step ends. Throws the error of a message that
  // failed.
  void drop_arrived();
  [[nodiscard]] CallOptions call(const std::string& tag) const {
    return {.tag = tag, .timeout = timeout_};
  }

  Group& group_;
  const std::span<const plan::Action> order_;
  const std::vector<int>& ranks_;  // of stages
  const Batch& batch_;
  SpecCache& book_;
  const c10::Device device_;
  const std::optional<Duration> timeout_;
  std::size_t next_ = 0;                                  // in the order
  std::unordered_map<std::uint64_t, Expected> expected_;  // by plan::key_of()
  std::vector<Work> sent_;
};

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
  Execution(const plan::Schedule& schedule, const Batch& batch, StepKind kind, P2PExchange& p2p,
            ExecutionParts parts)
      : schedule_(schedule), batch_(batch), kind_(kind), p2p_(p2p), parts_(std::move(parts)) {}

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
  void pass(const plan::Action& result, Tensors tensors);
  [[nodiscard]] Tensors take(const plan::Action& result, int stage);
  // Returns the gradients with which backward() of a micro-batch begins.
  [[nodiscard]] Tensors root_gradients(const plan::Action& action);
  template <typename Body>
  auto timed(const plan::Action& action, Body body);
  [[nodiscard]] bool is_last(int stage) const { return stage + 1 == schedule_.stages; }

  const plan::Schedule& schedule_;
  const Batch& batch_;
  const StepKind kind_;
  P2PExchange& p2p_;
  ExecutionParts parts_;
  std::map<std::uint64_t, Tensors> here_;  // passed between stages of this rank
  std::map<int, at::Tensor> losses_;       // by micro-batch, until its backward; without history
  std::map<int, Tensors> outputs_;         // by micro-batch
  at::Tensor loss_;
  std::map<std::pair<int, char>, Spent> spent_;
  double began_ = -1, ended_ = 0;
};

}  // namespace lockstep::pipeline
