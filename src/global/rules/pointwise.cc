#include "base/check.h"
#include "base/format.h"
#include "base/never_destroyed.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace lockstep::global {
namespace {

using Sets = std::vector<std::vector<int>>;

std::string sizes_in(const RuleCall& call) {
  std::vector<std::string> all;
  for (const RuleOperand& one : call.operands())
    if (!is_out(one)) all.push_back(c10::str(at::IntArrayRef(one.sizes)));
  return listed(all, ", ");
}

// Throws if the operand is written and would have to change its sizes.
void check_sizes_of_written(const RuleCall& call, std::size_t operand,
                            const std::vector<std::int64_t>& sizes) {
  check(!call.operands()[operand].written || call.sizes(operand) == sizes,
        "{}: expected a tensor of sizes {} to write to, found {}", call.operation(),
        c10::str(at::IntArrayRef(sizes)), c10::str(at::IntArrayRef(call.sizes(operand))));
}

// Operands are aligned at their last dims. The sizes of out= tensors must be those of the result,
// and do not determine them.
Rule broadcast(const RuleCall& call) {
  Rule rule;
  std::size_t most = 0;
  for (const RuleOperand& one : call.operands())
    if (!is_out(one)) most = std::max(most, one.sizes.size());
  Rule::Result result{std::vector<std::int64_t>(most, 1), std::vector<int>(most)};
  for (std::size_t dim = 0; dim < most; ++dim) result.dims[dim] = rule.add();
  for (const RuleOperand& one : call.operands()) {
    if (is_out(one)) continue;
    std::size_t first = most - one.sizes.size();
    for (std::size_t dim = first; dim < most; ++dim)
      if (one.sizes[dim - first] != 1) result.sizes[dim] = one.sizes[dim - first];
  }
  for (std::size_t i = 0; i < call.size(); ++i) {
    if (is_out(call.operands()[i])) check_sizes_of_written(call, i, result.sizes);
    std::size_t first = most - call.sizes(i).size();
    std::vector<int> dims;
    for (std::size_t dim = first; dim < most; ++dim) {
      check(call.sizes(i)[dim - first] == 1 || call.sizes(i)[dim - first] == result.sizes[dim],
            "{}: expected tensors whose sizes broadcast, found {}", call.operation(),
            sizes_in(call));
      bool is_spread = call.sizes(i)[dim - first] != result.sizes[dim];
      dims.push_back(is_spread ? Rule::whole : result.dims[dim]);
    }
    rule.operands.push_back(std::move(dims));
  }
  for (std::size_t i = 0; i < call.size(); ++i) check_sizes_of_written(call, i, result.sizes);
  rule.results.assign(call.results(), result);
  return rule;
}

// Returns false if operand i is a number, which is no tensor: add(x, 1, out=y) has two, x and y.
bool is_read(const RuleCall& call, int i) {
  const auto operand = static_cast<std::size_t>(i);
  return operand < call.size() && !is_out(call.operands()[operand]);
}

RuleFunction pointwise_with(Sets linear, bool moves = false) {
  return [linear = std::move(linear), moves](const RuleCall& call) {
    Rule rule = broadcast(call);
    for (const auto& set : linear)
      if (std::ranges::all_of(set, [&](int i) { return is_read(call, i); }))
        rule.linear.push_back(set);
    rule.moves = moves;
    return rule;
  };
}

// Division with rounding is not linear.
Rule divide(const RuleCall& call) {
  Rule rule = broadcast(call);
  if (call.arguments() < 3 || !call.argument(2).isString()) rule.linear = {{0}};
  return rule;
}

// The operation writes self, which keeps its dtype.
Rule copy(const RuleCall& call) {
  Rule rule = broadcast(call);
  if (call.size() < 2) return rule;
  rule.linear = {{0, 1}};
  rule.moves = call.operands()[0].dtype == call.operands()[1].dtype;
  return rule;
}

// Schema: self -> output, and a buffer for the gradient, which some kernels leave empty.
Rule log_sigmoid(const RuleCall& call) {
  Rule rule = broadcast(call);
  rule.finish = [](RulePlan& plan) {
    plan.kernel = [run = plan.operation](torch::jit::Stack& stack) {
      run(stack);
      const at::Tensor output = stack[stack.size() - 2].toTensor();
      if (stack.back().toTensor().sizes() != output.sizes()) stack.back() = at::empty_like(output);
    };
  };
  return rule;
}

// Schema: self, dim. The result is the first half of the dim times the sigmoid of the second half.
// The gradient, of (grad, self, dim), has the sizes of self.
Rule glu(const RuleCall& call, bool is_backward) {
  const std::size_t self = is_backward ? 1 : 0;
  const std::int64_t dim = from_front(call.argument(self + 1).toInt(), call.dim(self));
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(self), {dim});
  rule.operands.assign(call.size(), labels);
  Rule::Result result{call.sizes(self), labels};
  if (!is_backward && !result.sizes.empty()) result.sizes[static_cast<std::size_t>(dim)] /= 2;
  rule.results = {std::move(result)};
  return rule;
}

using LinearSets = std::map<std::string, Sets, std::less<>>;

// The sets of operands in which each operation is linear, by its name without a trailing '_'. The
// backward of an activation has no set: a layer uses its gradient three times, for bias, weight and
// input, so reducing addends first is cheaper.
const LinearSets& linear_sets() {
  static const NeverDestroyed sets([]() -> LinearSets {
    return {
        {"neg", {{0}}},        {"add", {{0, 1}}},           {"sub", {{0, 1}}},
        {"mul", {{0}, {1}}},   {"lerp", {{0, 1}}},          {"addcmul", {{0, 1}, {0, 2}}},
        {"addcdiv", {{0, 1}}}, {"where", {{1, 2}}},         {"threshold_backward", {}},
        {"gelu_backward", {}}, {"silu_backward", {}},       {"sigmoid_backward", {}},
        {"tanh_backward", {}}, {"leaky_relu_backward", {}}, {"native_dropout_backward", {{0}}},
    };
  }());
  return *sets;
}

// Names of pointwise operations whose list operation has a rule under another name.
bool is_pointwise_name(std::string_view name) {
  static const std::vector<std::string_view> names = {
      "add",       "sub",       "mul",     "div",     "addcmul", "addcdiv",    "lerp",  "neg",
      "sqrt",      "rsqrt",     "abs",     "exp",     "log",     "reciprocal", "sign",  "pow",
      "clamp_min", "clamp_max", "maximum", "minimum", "zero",    "copy",       "tanh",  "sigmoid",
      "floor",     "ceil",      "round",   "cos",     "sin",     "erf",        "expm1", "log1p",
      "log2",      "log10",     "trunc",   "frac"};
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

RuleFunction pointwise() { return pointwise_with({}); }

RuleFunction rule_of_element(std::string_view name) {
  constexpr std::string_view prefix = "_foreach_";
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  if (!is_pointwise_name(name)) return {};
  if (name == "div") return pointwise_with({{0}});
  if (name == "zero") return pointwise_with({{0}}, true);
  if (name == "copy") return copy;
  auto found = linear_sets().find(name);
  return found == linear_sets().end() ? pointwise() : pointwise_with(found->second);
}

void add_pointwise_rules(RuleTable& table) {
  for (const auto& [name, sets] : linear_sets())
    table[name] = table[name + "_"] = pointwise_with(sets);
  table["div"] = table["div_"] = divide;
  table["_to_copy"] = pointwise_with({{0}});
  table["clone"] = table["zero_"] = table["_conj_physical"] = pointwise_with({{0}}, true);
  table["copy_"] = copy;
  // LibTorch does not tag these operations as pointwise.
  for (const char* name :
       {"fill_", "masked_fill", "masked_fill_", "leaky_relu", "leaky_relu_", "hardswish",
        "hardswish_", "hardswish_backward", "hardtanh_backward", "hardsigmoid_backward",
        "hardshrink_backward", "softshrink_backward", "softplus_backward", "elu_backward",
        "mish_backward", "log_sigmoid_backward", "_prelu_kernel", "_prelu_kernel_backward"})
    table[name] = pointwise();
  table["log_sigmoid_forward"] = log_sigmoid;
  table["glu"] = [](const RuleCall& call) { return glu(call, false); };
  table["glu_backward"] = [](const RuleCall& call) { return glu(call, true); };
}

}  // namespace lockstep::global
