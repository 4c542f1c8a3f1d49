#include "global/decide.h"

#include "base/check.h"
#include "base/log.h"
#include "global/choose.h"
#include "global/convert.h"
#include "global/lists.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

namespace lockstep::global {
namespace {

std::vector<RuleOperand> operands_of(const Arguments& arguments, const Space& space) {
  std::vector<RuleOperand> operands;
  for (const TensorArgument& one : arguments.tensors) {
    PlacementList now = one.global != nullptr ? one.global->spec->placements : space.replicated();
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

// For each operand the result that is the same tensor; -1: none.
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

// A written tensor is the result, and would have to change its sizes.
void check_written(const RuleCall& call, std::span<const int> result_of_operand,
                   const std::vector<Rule::Result>& results) {
  for (std::size_t i = 0; i < call.size(); ++i) {
    if (!call.operands()[i].written || result_of_operand[i] < 0) continue;
    auto number = static_cast<std::size_t>(result_of_operand[i]);
    check(number >= results.size() || results[number].sizes == call.sizes(i),
          "{}: expected a tensor of sizes {} to write to, found {}", call.operation(),
          c10::str(at::IntArrayRef(results[std::min(number, results.size() - 1)].sizes)),
          c10::str(at::IntArrayRef(call.sizes(i))));
  }
}

void check_rule(const Rule& rule, const RuleCall& call) {
  check(rule.operands.size() == call.size(),
        "{}: its rule has dims of {} tensors, and the call has {}", call.operation(),
        rule.operands.size(), call.size());
  for (std::size_t i = 0; i < call.size(); ++i)
    check(rule.operands[i].size() == call.sizes(i).size(),
          "{}: its rule has {} dims of tensor {}, and the tensor has {}", call.operation(),
          rule.operands[i].size(), i, call.sizes(i).size());
}

[[noreturn]] void refuse_unknown(const Operation& operation, const Arguments& arguments,
                                 const Space& space) {
  throw InvalidArgument(
      formatted("{}: there is no rule for it on global tensors, found {} on mesh {}; {}; "
                "GlobalOptions::replicate_unknown runs it on replicated tensors",
                operation.name, describe_placements(arguments), space.name(),
                how_to_register(operation.name)));
}

void log_once(const Operation& operation) {
  static std::mutex mutex;
  static std::set<std::string> known;
  std::lock_guard lock(mutex);
  if (known.insert(operation.name).second)
    log::warning("{}: there is no rule for it on global tensors, its arguments are replicated; {}",
                 operation.name, how_to_register(operation.name));
}

// All arguments and results replicated; the sizes of results are what the operation gives.
Rule replicate_all(const RuleCall& call) {
  Rule rule;
  for (std::size_t i = 0; i < call.size(); ++i)
    rule.operands.emplace_back(call.sizes(i).size(), Rule::whole);
  return rule;
}

std::vector<std::int64_t> local_of(at::IntArrayRef sizes, const PlacementList& placements,
                                   const Space& space) {
  Dims local = local_sizes(sizes, placements, space.place());
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
            const c10::OperatorHandle& handle, Space& space, Decision& decision) {
  if (!rule.finish) return;
  RulePlan plan;
  plan.space = &space;
  plan.operation = [handle](torch::jit::Stack& stack) { handle.callBoxed(stack); };
  plan.part_of = [&space](const at::Tensor& whole, const Placements& placements) {
    return part_of(whole, placements, space.place());
  };
  plan.all_reduce = [&space](int axis, const at::Tensor& tensor, Op op) {
    all_reduce(space, axis, tensor, op);
  };
  for (std::size_t i = 0; i < call.size(); ++i) {
    plan.operands.emplace_back(chosen.operands[i].begin(), chosen.operands[i].end());
    plan.local_operands.push_back(local_of(call.sizes(i), chosen.operands[i], space));
  }
  for (std::size_t i = 0; i < rule.results.size(); ++i) {
    plan.results.emplace_back(chosen.results[i].begin(), chosen.results[i].end());
    plan.local_results.push_back(local_of(rule.results[i].sizes, chosen.results[i], space));
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
                       const Space& space) {
  check_rule(rule, call);
  Outcome outcome{
      choose(rule, call, results_of_operands(operation, call), space.place(), space.wishes),
      rule.results};
  return outcome;
}

// A list operation: each element of its lists apart, with the tensors that are in no list.
Outcome choose_for_elements(const Operation& operation, const RuleCall& call, const Space& space) {
  Outcome outcome;
  outcome.chosen.operands.assign(call.size(), space.replicated());
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
    Outcome of_part = choose_for_all(operation, operation.rule(part), part, space);
    for (std::size_t i = 0; i < places.size(); ++i)
      outcome.chosen.operands[places[i]] = of_part.chosen.operands[i];
    if (operation.returns.empty()) continue;
    outcome.chosen.results.push_back(of_part.chosen.results.front());
    outcome.results.push_back(of_part.results.front());
  }
  return outcome;
}

}  // namespace

DecisionPtr decide(const c10::OperatorHandle& handle, const Operation& operation,
                   const Arguments& arguments, std::span<const c10::IValue> values, Space& space) {
  bool is_known = operation.way == Operation::Way::rule;
  if (!is_known && !space.options.load().replicate_unknown)
    refuse_unknown(operation, arguments, space);
  if (!is_known) log_once(operation);
  RuleCall call(operation.name, operands_of(arguments, space), values, operation.tensor_results);
  Rule rule;
  if (!operation.for_each_element) rule = is_known ? operation.rule(call) : replicate_all(call);
  Outcome outcome = operation.for_each_element ? choose_for_elements(operation, call, space)
                                               : choose_for_all(operation, rule, call, space);
  const Chosen& chosen = outcome.chosen;
  std::vector<int> same = results_of_operands(operation, call);
  check_written(call, same, outcome.results);
  auto decision = c10::make_intrusive<Decision>();
  for (std::size_t i = 0; i < call.size(); ++i) {
    const RuleOperand& operand = call.operands()[i];
    Decision::Operand one{.placements = chosen.operands[i]};
    bool has_result = same[i] >= 0 && same[i] < static_cast<int>(chosen.results.size());
    one.left = has_result ? chosen.results[static_cast<std::size_t>(same[i])] : one.placements;
    one.converts = !std::ranges::equal(one.placements, operand.placements);
    one.converts_back = operand.written && !std::ranges::equal(one.left, operand.placements);
    decision->is_plain &= !one.converts && !one.converts_back;
    decision->is_copy |= operation.is_view && one.converts;
    for (std::size_t axis = 0; axis < one.placements.size(); ++axis)
      decision->may_fail_alone |=
          space.place()[axis].size > 1 && !one.placements[axis].is_replicate();
    decision->operands.push_back(std::move(one));
    if (const GlobalTensor* global = arguments.tensors[i].global)
      decision->keeps.push_back(global->spec);
  }
  for (std::size_t i = 0; i < outcome.results.size(); ++i) {
    const Rule::Result& result = outcome.results[i];
    decision->results.push_back({chosen.results[i], Dims(result.sizes.begin(), result.sizes.end()),
                                 Dims(result.strides.begin(), result.strides.end())});
  }
  finish(rule, call, chosen, handle, space, *decision);
  decision->is_plain &= decision->replaced.empty();
  return decision;
}

namespace {

at::Tensor meta_of(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// The results that LibTorch would give for whole tensors; nothing where it does not say. What it
// finds wrong with these is an error, since it may be right for a rank's parts.
std::optional<std::vector<at::Tensor>> meta_results(const c10::OperatorHandle& handle,
                                                    const Arguments& arguments,
                                                    torch::jit::Stack values) {
  // Operations that only Python has kernels of meta tensors for fail in other ways.
  bool says_what_is_wrong = handle.hasKernelForDispatchKey(c10::DispatchKey::Meta);
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

}  // namespace

std::vector<Dims> strides_of_results(const c10::OperatorHandle& handle, const Decision& decision,
                                     const Arguments& arguments, torch::jit::Stack values) {
  std::vector<Dims> all;
  auto metas = meta_results(handle, arguments, std::move(values));
  bool are_there = metas && metas->size() == decision.results.size();
  for (std::size_t i = 0; i < decision.results.size(); ++i) {
    const Dims& sizes = decision.results[i].sizes;
    const Dims& given = decision.results[i].strides;
    if (given.size() == sizes.size() && !given.empty()) {
      all.push_back(given);
      continue;
    }
    if (!are_there || !(*metas)[i].defined()) {
      all.push_back(row_major_strides(sizes));
      continue;
    }
    const at::Tensor& meta = (*metas)[i];
    check(meta.sizes() == at::IntArrayRef(sizes),
          "{}: expected sizes {} of result {}, found {} by its rule", handle.schema().name(),
          c10::str(meta.sizes()), i, c10::str(at::IntArrayRef(sizes)));
    all.emplace_back(meta.strides().begin(), meta.strides().end());
  }
  return all;
}

}  // namespace lockstep::global
