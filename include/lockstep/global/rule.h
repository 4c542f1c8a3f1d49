// Rules: how an operation runs on global tensors (lockstep/global/tensor.h). A rule says which
// placements of the tensors among the arguments give which placements of the results along one axis
// of the mesh. Of those that can be reached, the one is taken whose redistributions move the fewest
// bytes; it is remembered for arguments of the same kind.
//
// Most rules are a line that names dims, in the manner of einsum:
//
//   lockstep::register_rule("my::scale", "r c, c -> r c");
//
//   r c, c     the dims of each tensor argument, in the order of the schema; "" has none. Names
//              that are the same are cut together: r gives [Shard(0)] and [Replicate], c gives
//              [Shard(1)] and [Shard(0)].
//   -> r c     the dims of each result. A name that is missing there was summed over: cutting it
//              gives a Partial(sum).
//   R          an upper-case name is never cut: the operation mixes its elements (a softmax).
//   c?         the same name, where the dim may also have one element, which is spread over the
//              others' as broadcasting does.
//   1          a dim of one element.
//   ...        any number of leading dims, aligned at their ends as broadcasting does.
//   _          a tensor argument that is replicated, whatever its dims.
//
// Dims of one name have one length: other calls are InvalidArgument, as is a tensor that is written
// and has not the sizes of the result. Replicated arguments always give replicated results.
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

// A tensor among the arguments.
struct RuleOperand {
  int argument = 0;                 // in the schema
  int element = -1;                 // of a list; -1: the argument itself
  bool written = false;             // by the operation
  bool is_number = false;           // a plain tensor without dims: always replicated
  bool is_plain = false;            // not a global tensor, which counts as replicated
  std::vector<std::int64_t> sizes;  // of the whole
  std::vector<std::int64_t> strides;
  at::ScalarType dtype = at::kFloat;
  Placements placements;  // now
};

// What a rule is asked: one call of the operation. Undefined tensors are not operands.
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
  // By place in the schema. Tensors are global ones.
  [[nodiscard]] const c10::IValue& argument(std::size_t i) const { return arguments_[i]; }
  [[nodiscard]] std::size_t arguments() const { return arguments_.size(); }
  [[nodiscard]] std::span<const c10::IValue> all_arguments() const { return arguments_; }
  // How many tensors it returns, without those of a list.
  [[nodiscard]] std::size_t results() const { return results_; }
  // The operand that is an argument; -1 when it is undefined or no tensor.
  [[nodiscard]] int operand_of(int argument, int element = -1) const;

 private:
  std::string_view operation_;
  std::vector<RuleOperand> operands_;
  std::span<const c10::IValue> arguments_;
  std::size_t results_;
};

// Along one axis: placements of all operands, and those of all results.
struct RuleChoice {
  Placements operands;
  Placements results;
  // Taken only where the number of ranks of the mesh divides these.
  std::vector<std::int64_t> lengths = {};
  // Taken along one axis at most.
  bool once = false;
};

// What was chosen for one call, for a rule that adapts the local call to it.
struct RulePlan {
  std::vector<Placements> operands;  // of each, one an axis
  std::vector<Placements> results;
  std::vector<std::vector<std::int64_t>> local_operands;  // sizes on this rank
  std::vector<std::vector<std::int64_t>> local_results;
  // For kernels; these may be kept for as long as the mesh lives. The operation itself on what lies
  // on the stack; this rank's part of a whole tensor; an all_reduce in place along an axis.
  std::function<void(torch::jit::Stack& stack)> operation = {};
  std::function<at::Tensor(const at::Tensor& whole, const Placements& placements)> part_of = {};
  std::function<void(int axis, const at::Tensor& tensor, Op op)> all_reduce = {};
  global::MeshContext* context =
      nullptr;  // for rules inside of Lockstep; lives as long as the kernel
  // To be filled: arguments that differ locally, such as the sizes of a view.
  std::vector<std::pair<int, c10::IValue>> replaced = {};
  // To be filled: runs instead of the operation. The local arguments are the last items of the
  // stack; it leaves the local results there instead.
  std::function<void(torch::jit::Stack& stack)> kernel = {};
};

struct Rule {
  static constexpr int whole = -1;  // the label of a dim that is never cut

  struct Label {
    bool cut = true;                     // may be cut
    bool empty = true;                   // may be cut so that ranks have nothing of it
    std::optional<Op> reduce = Op::sum;  // what cutting it gives where a result lacks it
    // Operands that are addends of a result that lacks it: Partial where it is cut.
    std::vector<int> with_partial = {};
    // Where a label's dims have several lengths, as in a view: all of them.
    std::vector<std::int64_t> lengths = {};
  };
  struct Result {
    std::vector<std::int64_t> sizes = {};  // of the whole
    std::vector<int> dims = {};            // a label each
    // Of the whole, where LibTorch cannot say without running the operation; row-major if empty.
    std::vector<std::int64_t> strides = {};
  };

  std::vector<Label> labels = {};
  std::vector<std::vector<int>> operands = {};  // for each, a label for each dim
  // Tensors; those of a list one after the other. Empty if their sizes depend on values: they are
  // replicated, and no dim has a label.
  std::vector<Result> results = {};
  // Sets of operands in which the operation is linear: Partial sums and averages of these, with all
  // others replicated, give Partial results. A set does not count if a result has another dtype
  // than its operands, except a wider floating-point one.
  std::vector<std::vector<int>> linear = {};
  bool moves = false;            // only moves elements: then it is so for Partial of every kind
  std::vector<int> unread = {};  // operands of which only dtype and device count
  // The result is the gradient of a table of embeddings with the result's sizes.
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

using RuleFunction = std::function<Rule(const RuleCall& call)>;

// For every overload of `operation` ("aten::cumsum"), instead of the rule there was. Any thread,
// but not while another runs operations on global tensors. InvalidArgument when the line cannot be
// read.
void register_rule(std::string_view operation, std::string_view line);
void register_rule(std::string_view operation, RuleFunction rule);

}  // namespace lockstep

#pragma GCC visibility pop
