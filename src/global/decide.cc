#include "global/decide.h"

#include "base/check.h"
#include "base/log.h"
#include "global/choose.h"
#include "global/convert.h"
#include "global/rules/dims.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <set>

namespace lockstep::global {
namespace {

std::vector<RuleOperand> operands_of(const Arguments& arguments, const MeshContext& context) {
  std::vector<RuleOperand> operands;
  for (const TensorArgument& one : arguments.tensors) {
    PlacementList now = one.global != nullptr ? one.global->spec->placements : context.replicated();
    operands.push_back({.argument = one.argument,
                        .element = one.element,
                        .written = one.written,
                        .is_number = one.global == nullptr && one.tensor.dim() == 0,
                        .is_plain = one.global == nullptr,
                        .sizes = one.tensor.sizes().vec(),
                        .strides = one.tensor.strides().vec(),
                        .dtype = one.tensor.scalar_type(),
                        .placements = {now.begin(), now.end()}});
  }
  return operands;
}

// Returns, for each operand, the index of the result that is the same tensor, or -1.
std::vector<int> results_of_operands(const Operation& operation, const RuleCall& call) {
  std::vector<int> all(call.size(), -1);
  int number = 0;
  for (const Operation::Return& result : operation.returns) {
    if (result.is_tensor && result.alias >= 0) {
      int operand = call.operand_of(result.alias);
      if (operand >= 0) all[static_cast<std::size_t>(operand)] = number;
    }
    if (result.is_tensor) ++number;
  }
  return all;
}

// Throws if a written tensor, which becomes the result, would have to change its sizes.
void check_written(const RuleCall& call, std::span<const int> result_of_operand,
                   const std::vector<Rule::Result>& results) {
  for (std::size_t i = 0; i < call.size(); ++i) {
    if (!call.operands()[i].written || result_of_operand[i] < 0) continue;
    auto number = static_cast<std::size_t>(result_of_operand[i]);
    if (number >= results.size()) continue;
    check(results[number].sizes == call.sizes(i),
          "{}: expected a tensor of sizes {} to write to, found {}", call.operation(),
          c10::str(at::IntArrayRef(results[number].sizes)),
          c10::str(at::IntArrayRef(call.sizes(i))));
  }
}

void check_rule(const Rule& rule, const RuleCall& call) {
  check(rule.operands.size() == call.size(),
        "{}: expected as many tensors as its rule has, {}, found {}", call.operation(),
        rule.operands.size(), call.size());
  for (std::size_t i = 0; i < call.size(); ++i)
    check(rule.operands[i].size() == call.sizes(i).size(),
          "{}: expected dim() {} of tensor {}, as its rule says, found {}", call.operation(),
          rule.operands[i].size(), i, call.sizes(i).size());
  for (const RuleChoice& choice : rule.more)
    check(choice.operands.size() == call.size() && choice.results.size() == rule.results.size(),
          "{}: expected placements of {} tensors and {} results in each choice of its rule, found "
          "{} and {}",
          call.operation(), call.size(), rule.results.size(), choice.operands.size(),
          choice.results.size());
}

// Returns true if the converted sum of addends is the sum of converted addends. A narrower dtype
// rounds each addend, which may be much larger than the sum, and integers wrap in their own dtype.
bool keeps_sums(at::ScalarType from, at::ScalarType to) {
  auto has_fractions = [](at::ScalarType type) {
    return at::isFloatingType(type) || at::isComplexType(type);
  };
  if (from == to) return true;
  if (!has_fractions(from) || !has_fractions(to)) return false;
  if (at::isComplexType(from) && !at::isComplexType(to)) return false;
  at::ScalarType real_from = at::toRealValueType(from), real_to = at::toRealValueType(to);
  return real_from == real_to || c10::elementSize(real_to) > c10::elementSize(real_from);
}

// Removes sets of operands in which the operation is not linear because the results have another
// dtype. `first` and `count` select the call's results among the whole results.
void keep_linear_sets(Rule& rule, const RuleCall& call, const WholeResults& whole,
                      std::size_t first, std::size_t count) {
  std::vector<at::ScalarType> results;
  for (const RuleOperand& one : call.operands())
    if (one.written) results.push_back(one.dtype);
  for (std::size_t i = first; whole && i < std::min(whole->size(), first + count); ++i)
    if ((*whole)[i].defined()) results.push_back((*whole)[i].scalar_type());
  std::erase_if(rule.linear, [&](const std::vector<int>& set) {
    return std::ranges::any_of(set, [&](int operand) {
      at::ScalarType from = call.operands().at(static_cast<std::size_t>(operand)).dtype;
      return std::ranges::any_of(results, [&](auto to) { return !keeps_sums(from, to); });
    });
  });
}

// For one element of a list operation: removes sets of operands in which the operation is not
// linear because a written operand keeps its placement, or because another element may need another
// placement of an operand outside of the lists.
void keep_sets_of_elements(Rule& rule, const RuleCall& part) {
  std::erase_if(rule.linear, [&](const std::vector<int>& set) {
    for (std::size_t i = 0; i < part.size(); ++i) {
      const RuleOperand& operand = part.operands()[i];
      const bool is_in = std::ranges::find(set, static_cast<int>(i)) != set.end();
      if ((operand.written && !is_in) || (operand.element < 0 && is_in)) return true;
    }
    return false;
  });
}

// Returns true if all ranks' parts have the same sizes under both placements.
bool is_cut_alike(const PlacementList& a, const PlacementList& b) {
  return std::ranges::equal(a, b, [](Placement one, Placement other) {
    return one.is_shard() || other.is_shard() ? one == other : true;
  });
}

bool has_out(const c10::OperatorHandle& handle) {
  return std::ranges::any_of(handle.schema().arguments(), &c10::Argument::is_out);
}

// Returns a rule for an out= overload. The kernels that rules make for shards return new tensors
// and do not write to an out= tensor, so LibTorch's kernel runs on whole tensors.
Rule on_whole_tensors(const Rule& rule, const RuleCall& call) {
  Rule whole = all_whole(call);
  for (const Rule::Result& result : rule.results)
    whole.results.push_back(
        {result.sizes, std::vector<int>(result.sizes.size(), Rule::whole), result.strides});
  whole.finish = rule.finish;
  return whole;
}

void log_once(const Operation& operation) {
  static std::mutex mutex;
  static std::set<std::string> known;
  std::lock_guard lock(mutex);
  if (known.insert(operation.name).second)
    log::warning("{}: there is no rule for it on global tensors, its arguments are replicated; {}",
                 operation.name, how_to_register(operation.name));
}

std::vector<std::int64_t> local_of(at::IntArrayRef sizes, const PlacementList& placements,
                                   const MeshContext& context) {
  Dims local = local_sizes(sizes, placements, context.place());
  return {local.begin(), local.end()};
}

at::Tensor part_of(at::Tensor whole, const Placements& placements,
                   std::span<const AxisPlace> place) {
  for (std::size_t axis = 0; axis < placements.size(); ++axis)
    if (placements[axis].is_shard())
      whole = cut(whole, placements[axis], place[axis].size, place[axis].coordinate);
  return whole;
}

void finish(const Rule& rule, const RuleCall& call, const Chosen& chosen,
            const c10::OperatorHandle& handle, MeshContext& context, Decision& decision) {
  if (!rule.finish) return;
  RulePlan plan;
  plan.context = &context;
  plan.operation = [handle](torch::jit::Stack& stack) { handle.callBoxed(stack); };
  plan.part_of = [&context](const at::Tensor& whole, const Placements& placements) {
    return part_of(whole, placements, context.place());
  };
  plan.all_reduce = [&context](int axis, const at::Tensor& tensor, Op op) {
    all_reduce(context, axis, tensor, op);
  };
  for (std::size_t i = 0; i < call.size(); ++i) {
    plan.operands.emplace_back(chosen.operands[i].begin(), chosen.operands[i].end());
    plan.local_operands.push_back(local_of(call.sizes(i), chosen.operands[i], context));
  }
  for (std::size_t i = 0; i < rule.results.size(); ++i) {
    plan.results.emplace_back(chosen.results[i].begin(), chosen.results[i].end());
    plan.local_results.push_back(local_of(rule.results[i].sizes, chosen.results[i], context));
  }
  rule.finish(plan);
  decision.replaced = std::move(plan.replaced);
  decision.kernel = std::move(plan.kernel);
}

// The choices for a whole call, and the sizes of its results.
struct Outcome {
  Chosen chosen;
  std::vector<Rule::Result> results;
};

Outcome choose_for_all(const Operation& operation, const Rule& rule, const RuleCall& call,
                       const MeshContext& context) {
  return {choose(rule, call, results_of_operands(operation, call), context.place(), context.hints),
          rule.results};
}

// Chooses for a list operation: for each element of its lists separately, with the tensors that are
// not in a list.
Outcome choose_for_elements(const Operation& operation, const RuleCall& call,
                            const WholeResults& whole, const MeshContext& context) {
  Outcome outcome;
  outcome.chosen.operands.assign(call.size(), context.replicated());
  int elements = 0;
  for (const RuleOperand& one : call.operands()) elements = std::max(elements, one.element + 1);
  for (int element = 0; element < elements; ++element) {
    std::vector<RuleOperand> operands;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < call.size(); ++i) {
      const RuleOperand& one = call.operands()[i];
      if (one.element != element && one.element >= 0) continue;
      operands.push_back(one);
      places.push_back(i);
    }
    RuleCall part(call.operation(), std::move(operands), call.all_arguments(), 1);
    Rule rule = operation.rule(part);
    check_rule(rule, part);
    keep_linear_sets(rule, part, whole, static_cast<std::size_t>(element), 1);
    keep_sets_of_elements(rule, part);
    Outcome of_part = choose_for_all(operation, rule, part, context);
    for (std::size_t i = 0; i < places.size(); ++i)
      outcome.chosen.operands[places[i]] = of_part.chosen.operands[i];
    if (operation.returns.empty()) continue;
    outcome.chosen.results.push_back(of_part.chosen.results.front());
    outcome.results.push_back(of_part.results.front());
  }
  return outcome;
}

}  // namespace

void check_is_possible(const Operation& operation, const Arguments& arguments,
                       const MeshContext& context) {
  check(operation.way != Operation::Way::refused,
        "{}: a global tensor has no memory of its own whose sizes, strides or offset it could read "
        "or set, found {} on mesh {}; use view(), reshape(), slice() or a new tensor",
        operation.name, describe_placements(arguments), context.name());
  check(
      operation.way == Operation::Way::rule || context.options.load().replicate_unknown,
      "{}: there is no rule for it on global tensors, found {} on mesh {}; {}; "
      "set_global_options(mesh, {{.replicate_unknown = true, .replicate_plain = true}}) runs it on "
      "replicated tensors; the mesh of a model is that of its parameters, mesh_of()",
      operation.name, describe_placements(arguments), context.name(),
      how_to_register(operation.name));
}

void check_gradient(const Operation& operation, const Arguments& arguments,
                    const MeshContext& context) {
  if (!at::GradMode::is_enabled() || context.options.load().replicate_unknown) return;
  bool requires_grad = std::ranges::any_of(
      arguments.tensors, [](const TensorArgument& one) { return one.tensor.requires_grad(); });
  check(
      !requires_grad,
      "{}: there is no rule for its gradient {} on global tensors, found {} on mesh {}; run it "
      "under NoGradGuard, register a rule for {}, or "
      "set_global_options(mesh, {{.replicate_unknown = true, .replicate_plain = true}}); the mesh "
      "of a model is that of its parameters, mesh_of()",
      operation.name, operation.gradient, describe_placements(arguments), context.name(),
      operation.gradient);
}

DecisionPtr decide(const c10::OperatorHandle& handle, const Operation& operation,
                   const Arguments& arguments, std::span<const c10::IValue> values,
                   const WholeResults& whole, MeshContext& context) {
  bool is_known = operation.way == Operation::Way::rule;
  if (!is_known) log_once(operation);
  RuleCall call(operation.name, operands_of(arguments, context), values, operation.tensor_results);
  Rule rule;
  Outcome outcome;
  if (operation.for_each_element) {
    outcome = choose_for_elements(operation, call, whole, context);
  } else {
    // Without a rule, the operation determines the sizes of its results.
    rule = is_known ? operation.rule(call) : all_whole(call);
    if (!is_known && handle.hasTag(at::Tag::nondeterministic_seeded)) rule.finish = compared(call);
    if (rule.finish && has_out(handle)) rule = on_whole_tensors(rule, call);
    check_rule(rule, call);
    keep_linear_sets(rule, call, whole, 0, whole ? whole->size() : 0);
    outcome = choose_for_all(operation, rule, call, context);
  }
  const Chosen& chosen = outcome.chosen;
  std::vector<int> same = results_of_operands(operation, call);
  check_written(call, same, outcome.results);
  auto decision = c10::make_intrusive<Decision>();
  decision->is_plain = is_known;
  for (std::size_t i = 0; i < call.size(); ++i) {
    const RuleOperand& operand = call.operands()[i];
    Decision::Operand one{.placements = chosen.operands[i]};
    bool has_result = same[i] >= 0 && same[i] < static_cast<int>(chosen.results.size());
    one.left = has_result ? chosen.results[static_cast<std::size_t>(same[i])] : one.placements;
    // An operation gives an out= tensor of other sizes the sizes of its result.
    if (operand.written && !is_cut_alike(one.placements, one.left)) one.placements = one.left;
    one.converts = !std::ranges::equal(one.placements, operand.placements);
    one.converts_back = operand.written && !std::ranges::equal(one.left, operand.placements);
    decision->is_plain &= !one.converts && !one.converts_back;
    decision->is_copy |= operation.is_view && one.converts;
    for (std::size_t axis = 0; axis < one.placements.size(); ++axis)
      decision->may_fail_alone |=
          context.place()[axis].size > 1 && !one.placements[axis].is_replicate();
    decision->operands.push_back(std::move(one));
    if (const GlobalTensor* global = arguments.tensors[i].global)
      decision->keeps.push_back(global->spec);
  }
  for (std::size_t i = 0; i < outcome.results.size(); ++i) {
    const Rule::Result& result = outcome.results[i];
    decision->results.push_back({chosen.results[i], Dims(result.sizes.begin(), result.sizes.end()),
                                 Dims(result.strides.begin(), result.strides.end())});
  }
  finish(rule, call, chosen, handle, context, *decision);
  decision->is_plain &= decision->replaced.empty();
  return decision;
}

namespace {

at::Tensor meta_of(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

}  // namespace

WholeResults whole_results(const c10::OperatorHandle& handle, const Operation& operation,
                           const Arguments& arguments, torch::jit::Stack values) {
  // If the meta kernel exists in Python only, the operation fails with an unrelated error. A view
  // has one kernel for all devices.
  bool says_what_is_wrong =
      handle.hasKernelForDispatchKey(c10::DispatchKey::Meta) || operation.is_view;
  try {
    std::vector<at::Tensor> metas;
    for (const TensorArgument& one : arguments.tensors)
      metas.push_back(one.global != nullptr || one.tensor.dim() > 0 ? meta_of(one.tensor)
                                                                    : one.tensor);
    put_tensors(arguments, metas, values);
    for (c10::IValue& value : values) {
      if (value.isDevice()) value = c10::Device(c10::kMeta);
      if (value.isGenerator()) value = c10::IValue();
    }
    handle.callBoxed(values);
    return tensors_in(values);
  } catch (const c10::NotImplementedError&) {
    return {};
  } catch (const c10::Error& error) {
    if (!says_what_is_wrong) return {};
    std::string what = error.what_without_backtrace();
    throw InvalidArgument(
        formatted("{}: {}", handle.schema().name(), what.substr(0, what.find('\n'))));
  } catch (const std::exception&) {
    return {};
  }
}

std::vector<Dims> strides_of_results(const c10::OperatorHandle& handle, const Decision& decision,
                                     const WholeResults& whole) {
  std::vector<Dims> all;
  bool are_there = whole && whole->size() == decision.results.size();
  for (std::size_t i = 0; i < decision.results.size(); ++i) {
    const Dims& sizes = decision.results[i].sizes;
    const Dims& given = decision.results[i].strides;
    if (given.size() == sizes.size() && !given.empty()) {
      all.push_back(given);
      continue;
    }
    if (!are_there || !(*whole)[i].defined()) {
      all.push_back(c10::contiguous_strides(sizes));
      continue;
    }
    const at::Tensor& meta = (*whole)[i];
    // For tensors without elements, LibTorch's meta kernels return other sizes than its real
    // kernels.
    if (meta.numel() == 0 && meta.sizes() != at::IntArrayRef(sizes)) {
      all.push_back(c10::contiguous_strides(sizes));
      continue;
    }
    check(meta.sizes() == at::IntArrayRef(sizes),
          "{}: expected sizes {} of result {}, found {} by its rule", handle.schema().name(),
          c10::str(meta.sizes()), i, c10::str(at::IntArrayRef(sizes)));
    all.emplace_back(meta.strides().begin(), meta.strides().end());
  }
  return all;
}

namespace {

// Maximum number of decisions. A training step needs some hundreds; if shapes keep varying, all
// decisions are dropped at this number.
constexpr std::size_t most = 16384;

std::uint64_t next_generation() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// A recent decision of this thread, in a table that is indexed by part of the hash and needs no
// lock.
struct Found {
  std::uint64_t generation = 0;
  Key key;
  DecisionPtr decision;
};
constexpr std::size_t found_bits = 8;

}  // namespace

Decisions::Decisions() : generation_(next_generation()) {}

DecisionPtr Decisions::find(const Key& key) {
  thread_local std::vector<Found> lately(std::size_t{1} << found_bits);
  Found& entry = lately[key.hash >> (64 - found_bits)];
  std::uint64_t generation = generation_.load(std::memory_order_acquire);
  if (entry.generation == generation && entry.key == key) return entry.decision;
  std::lock_guard lock(mutex_);
  auto found = all_.find(key);
  if (found == all_.end()) return {};
  entry = {generation, key, found->second};
  return found->second;
}

void Decisions::add(const Key& key, DecisionPtr decision) {
  added_.fetch_add(1, std::memory_order_relaxed);
  if (!key.can_be_remembered) return;
  std::lock_guard lock(mutex_);
  if (all_.size() >= most) all_.clear();
  all_.insert_or_assign(key, std::move(decision));
}

void Decisions::clear() {
  std::lock_guard lock(mutex_);
  all_.clear();
  generation_.store(next_generation(), std::memory_order_release);
}

}  // namespace lockstep::global
