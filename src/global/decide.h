// Decision: how one operation runs on arguments of one kind; and Decisions, a cache of decisions.
#pragma once

#include "global/arguments.h"
#include "global/operation.h"
#include "global/spec.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::global {

struct Decision final : c10::intrusive_ptr_target {
  struct Operand {
    PlacementList placements;  // with which the operation gets the operand
    bool converts = false;     // the operand has other placements
    PlacementList left;        // for a written operand: with which the operation leaves it
    bool converts_back = false;
  };
  struct Result {
    PlacementList placements;
    Dims sizes;    // of the whole tensor
    Dims strides;  // empty: those that LibTorch computes
  };
  // Operands are tensor arguments in the order of the schema; results exclude those that are
  // arguments.
  c10::SmallVector<Operand, 4> operands;
  std::vector<Result> results;
  std::vector<std::pair<int, c10::IValue>> replaced;
  std::function<void(torch::jit::Stack&)> kernel;
  bool is_plain = true;         // no conversion and no replaced argument
  bool is_copy = false;         // a view that had to be copied
  bool may_fail_alone = false;  // ranks run it on different values, so one may fail alone
  // Specs of the results, known once the operation has run. They do not change after the decision
  // is added to Decisions.
  std::vector<SpecPtr> specs;
  bool has_run = false;
  std::vector<SpecPtr> keeps;  // objects whose addresses are in the key
};
using DecisionPtr = c10::intrusive_ptr<Decision>;

class Decisions {
 public:
  Decisions();
  // Returns null if the decision is not cached.
  [[nodiscard]] DecisionPtr find(const Key& key);
  void add(const Key& key, DecisionPtr decision);
  void clear();
  // Returns the number of decisions added so far, including dropped ones.
  [[nodiscard]] std::int64_t added() const { return added_.load(std::memory_order_relaxed); }

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const { return key.hash; }
  };
  std::atomic<std::int64_t> added_{0};
  std::atomic<std::uint64_t> generation_;  // differs after each clear(), and in each context
  std::mutex mutex_;
  std::unordered_map<Key, DecisionPtr, Hash> all_;
};

// Throws InvalidArgument if global tensors cannot take part in the operation.
void check_is_possible(const Operation& operation, const Arguments& arguments,
                       const MeshContext& context);

// Throws InvalidArgument if the operation's gradient will be needed but has no rule. Call it for
// each call of the operation, because the result does not depend on the decision alone.
void check_gradient(const Operation& operation, const Arguments& arguments,
                    const MeshContext& context);

// The results that LibTorch would compute for whole tensors, as meta tensors; std::nullopt if
// LibTorch cannot compute them. Throws InvalidArgument for arguments that are invalid for whole
// tensors, even if they are valid for a rank's parts.
using WholeResults = std::optional<std::vector<at::Tensor>>;
[[nodiscard]] WholeResults whole_results(const c10::OperatorHandle& handle,
                                         const Operation& operation, const Arguments& arguments,
                                         torch::jit::Stack values);

// Throws InvalidArgument if no choice of the operation's rule is reachable.
[[nodiscard]] DecisionPtr decide(const c10::OperatorHandle& handle, const Operation& operation,
                                 const Arguments& arguments, std::span<const c10::IValue> values,
                                 const WholeResults& whole, MeshContext& context);

// Returns the strides of new results as the operation would compute them for whole tensors;
// row-major if LibTorch cannot compute them. Throws InvalidArgument if LibTorch computes other
// sizes than the rule.
[[nodiscard]] std::vector<Dims> strides_of_results(const c10::OperatorHandle& handle,
                                                   const Decision& decision,
                                                   const WholeResults& whole);

}  // namespace lockstep::global
