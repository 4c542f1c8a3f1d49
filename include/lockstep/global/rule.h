// Rules: how an operation runs on global tensors (lockstep/global/tensor.h). For one axis of the
// mesh, a rule lists combinations of argument placements and the result placements that they give.
// The combination whose redistributions move the fewest bytes is chosen, and cached for arguments
// of the same kind.
//
// Most rules are one line that names dims, as in einsum:
//
//   lockstep::register_rule("my::scale", "r c, c -> r c");
//
//   r c, c     the dims of each tensor argument, in the order of the schema; "" has none. Equal
//              names are sharded together: r gives [Shard(0)] and [Replicate], c gives
//              [Shard(1)] and [Shard(0)].
//   -> r c     the dims of each result. A name that is missing here was summed over: sharding it
//              gives a Partial(sum).
//   R          an upper-case name is never sharded: the operation mixes its elements (softmax).
//   c?         the same name, but the dim may also have one element, which is broadcast to the
//              length of the others.
//   1          a dim of one element.
//   ...        any number of leading dims, aligned at their ends as in broadcasting.
//   _          a tensor argument that is always replicated, with any dims.
//
// Dims of the same name must have the same length, and a tensor that is written must have the sizes
// of the result; otherwise the call throws InvalidArgument. Replicated arguments always give
// replicated results.
#pragma once

#include <lockstep/global/placement.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

namespace global {
class MeshContext;
}

// A tensor argument of a call.
struct RuleOperand {
  int argument = 0;        // index in the schema
  int element = -1;        // index in a list argument; -1: the argument itself
  bool written = false;    // written by the operation
  bool is_number = false;  // plain tensor without dims, such as a number: always replicated
  bool is_plain = false;   // not a global tensor: counts as replicated
  std::vector<std::int64_t> sizes;  // of the whole tensor
  std::vector<std::int64_t> strides;
  at::ScalarType dtype = at::kFloat;
  Placements placements;  // before the call
};

// The input of a rule: one call of the operation. Undefined tensors are not operands.
class RuleCall {
 public:
  RuleCall(std::string_view operation, std::vector<RuleOperand> operands,
           std::span<const c10::IValue> arguments, std::size_t results)
      : operation_(operation),
        operands_(std::move(operands)),
        arguments_(arguments),
        results_(results) {}

  [[nodiscard]] std::string_view operation() const { return operation_; }  // "aten::mm"
  [[nodiscard]] const std::vector<RuleOperand>& operands() const { return operands_; }
  [[nodiscard]] std::size_t size() const { return operands_.size(); }
  [[nodiscard]] const std::vector<std::int64_t>& sizes(std::size_t operand) const {
    return operands_.at(operand).sizes;
  }
  [[nodiscard]] std::int64_t dim(std::size_t operand) const {
    return static_cast<std::int64_t>(sizes(operand).size());
  }
  // The argument at index i in the schema. Tensors in it are global tensors.
  [[nodiscard]] const c10::IValue& argument(std::size_t i) const { return arguments_[i]; }
  [[nodiscard]] std::size_t arguments() const { return arguments_.size(); }
  [[nodiscard]] std::span<const c10::IValue> all_arguments() const { return arguments_; }
  // Returns the number of tensors that the operation returns, not counting those in a list.
  [[nodiscard]] std::size_t results() const { return results_; }
  // Returns the operand of an argument, or -1 if it is undefined or not a tensor.
  [[nodiscard]] int operand_of(int argument, int element = -1) const;

 private:
  std::string_view operation_;
  std::vector<RuleOperand> operands_;
  std::span<const c10::IValue> arguments_;
  std::size_t results_;
};

// One combination along one axis: placements of all operands and all results.
struct RuleChoice {
  Placements operands;
  Placements results;
  // Allowed only if the number of ranks of the mesh divides each of these lengths.
  std::vector<std::int64_t> lengths = {};
  // Allowed along at most one axis.
  bool once = false;
};

// The placements chosen for one call, for a rule that adapts the local call to them.
struct RulePlan {
  std::vector<Placements> operands;  // per operand: one placement per axis
  std::vector<Placements> results;
  std::vector<std::vector<std::int64_t>> local_operands;  // sizes on this rank
  std::vector<std::vector<std::int64_t>> local_results;
  // For kernels, which may keep these functions for the lifetime of the mesh. operation() runs the
  // operation itself on the arguments on the stack. part_of() returns this rank's part of a whole
  // tensor. all_reduce() works in place along an axis.
  std::function<void(torch::jit::Stack& stack)> operation = {};
  std::function<at::Tensor(const at::Tensor& whole, const Placements& placements)> part_of = {};
  std::function<void(int axis, const at::Tensor& tensor, Op op)> all_reduce = {};
  global::MeshContext* context = nullptr;  // for rules inside Lockstep; outlives the kernel
  // Output: arguments that differ locally, such as the sizes of a view.
  std::vector<std::pair<int, c10::IValue>> replaced = {};
  // Output: a function that runs instead of the operation. It replaces the local arguments, which
  // are the last items on the stack, with the local results.
  std::function<void(torch::jit::Stack& stack)> kernel = {};
};

struct Rule {
  static constexpr int whole = -1;  // the label of a dim that is never sharded

  struct Label {
    bool cut = true;    // may be sharded
    bool empty = true;  // may be sharded so that some ranks have no elements
    // Partial placement of a result without the label, if the label is sharded.
    std::optional<Op> reduce = Op::sum;
    // Operands that are added to a result without the label. They must be Partial if the label is
    // sharded.
    std::vector<int> with_partial = {};
    // If dims of the label have several lengths, as in a view: all of the lengths.
    std::vector<std::int64_t> lengths = {};
  };
  struct Result {
    std::vector<std::int64_t> sizes = {};  // of the whole tensor
    std::vector<int> dims = {};            // one label per dim
    // Strides of the whole tensor, if LibTorch cannot compute them without running the operation;
    // row-major if empty.
    std::vector<std::int64_t> strides = {};
  };

  std::vector<Label> labels = {};
  std::vector<std::vector<int>> operands = {};  // per operand: one label per dim
  // One per result tensor; the tensors of a list follow one another. Empty if result sizes depend
  // on values: the results are then replicated, and no dim has a label.
  std::vector<Result> results = {};
  // Sets of operands in which the operation is linear: if the operands of a set are Partial (sum or
  // average) and all others are replicated, the results are Partial. A set is ignored if a result
  // has another dtype than its operands, unless it is a wider floating-point dtype.
  std::vector<std::vector<int>> linear = {};
  bool moves = false;            // only moves elements, hence linear for Partial of every kind
  std::vector<int> unread = {};  // operands whose values are not read, only dtype and device
  // The result is the gradient of an embedding table that has the sizes of the result.
  bool is_gradient_of_table = false;
  std::vector<RuleChoice> more = {};
  std::function<void(RulePlan& plan)> finish = {};

  // Adds a label and returns its number.
  int add() { return add(Label()); }
  int add(Label label) {
    labels.push_back(std::move(label));
    return static_cast<int>(labels.size()) - 1;
  }
};

// Runs once for arguments of the same kind. Values of float and Scalar arguments are not part of
// the kind, so a rule must not store them in its result: a kernel must read them from the stack.
using RuleFunction = std::function<Rule(const RuleCall& call)>;

// Sets the rule of every overload of `operation` ("aten::cumsum"), replacing an earlier rule. May
// be called by any thread, but not while another thread runs operations on global tensors. Throws
// InvalidArgument if the line cannot be parsed.
void register_rule(std::string_view operation, std::string_view line);
void register_rule(std::string_view operation, RuleFunction rule);

}  // namespace lockstep

#pragma GCC visibility pop
