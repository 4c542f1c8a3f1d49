#include "base/format.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <limits>

namespace lockstep::global {
namespace {

// Returns labels for the leading dims of [.., normalized...].
std::vector<int> leading(Rule& rule, const std::vector<std::int64_t>& sizes,
                         std::size_t normalized) {
  std::vector<int> labels(sizes.size(), Rule::whole);
  for (std::size_t dim = 0; dim + normalized < sizes.size(); ++dim) labels[dim] = rule.add();
  return labels;
}

// Schema: input, normalized_shape, weight?, bias?, eps -> out, mean, rstd
Rule layer_norm(const RuleCall& call) {
  Rule rule = all_whole(call);
  const std::vector<std::int64_t> shape = call.argument(1).toIntVector();
  const std::size_t normalized = shape.size();
  check(normalized <= call.sizes(0).size() &&
            std::equal(shape.rbegin(), shape.rend(), call.sizes(0).rbegin()),
        "{}: expected an input whose last sizes are [{}], found sizes [{}]", call.operation(),
        listed(shape, ", "), listed(call.sizes(0), ", "));
  const std::vector<int> labels = leading(rule, call.sizes(0), normalized);
  rule.operands[0] = labels;
  std::vector<std::int64_t> rows = call.sizes(0);
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(normalized), rows.end(), 1);
  rule.results = {{call.sizes(0), labels}, {rows, labels}, {rows, labels}};
  return rule;
}

// Schema: grad, input, normalized_shape, what forward saved, ... -> gradients of input and weight.
// The first `count` operands have the rows of the input.
Rule norm_backward(const RuleCall& call, std::size_t count) {
  Rule rule = all_whole(call);
  std::vector<std::int64_t> shape = call.argument(2).toIntVector();
  const std::vector<int> labels = leading(rule, call.sizes(0), shape.size());
  std::fill_n(rule.operands.begin(), count, labels);
  rule.results = {{call.sizes(1), labels}, {shape, std::vector<int>(shape.size(), Rule::whole)}};
  rule.finish = [count, arguments = call.arguments()](RulePlan& plan) {
    make_dense(plan, 0, 1, 0, arguments);
    make_dense(plan, 2, count - 1, 1, arguments);
  };
  return rule;
}

// Schema: grad, input, normalized_shape, mean, rstd, weight?, bias?, mask -> three gradients. The
// operation is linear in the gradient, but a Partial gradient would give three Partial results,
// each of which must be reduced.
Rule layer_norm_backward(const RuleCall& call) {
  Rule rule = norm_backward(call, 4);
  rule.results.push_back(rule.results.back());
  return rule;
}

// Schema: input, weight?, bias?, n, c, h * w, groups, eps -> out, mean [n, groups], rstd
struct Groups {
  Groups(const RuleCall& call, std::size_t input, std::size_t numbers)
      : rows_of(call.argument(numbers).toInt()),
        channels_of(call.argument(numbers + 1).toInt()),
        groups_of(call.argument(numbers + 3).toInt()),
        numbers(numbers) {
    const auto& sizes = call.sizes(input);
    bool can_be_cut = sizes.size() > 1 && sizes[0] == rows_of && sizes[1] == channels_of;
    if (!can_be_cut) return;
    rows = rule.add({.empty = false});
    Rule::Label label{.empty = false};
    label.lengths = {channels_of, groups_of};
    channels = rule.add(label);
  }

  // Returns labels of a tensor [n, channels or groups, ...], or [channels].
  [[nodiscard]] std::vector<int> labels(std::size_t dims) const {
    std::vector<int> all(dims, Rule::whole);
    if (dims > 1) all[0] = rows;
    if (dims > 0) all[dims > 1 ? 1 : 0] = channels;
    return all;
  }
  void add_operands(const RuleCall& call) {
    for (std::size_t i = 0; i < call.size(); ++i)
      rule.operands.push_back(labels(call.sizes(i).size()));
  }
  // Replaces the numbers n, c and so on by those of this rank, taken from operand `input` and a
  // weight or mean.
  void replace_numbers(std::size_t input) {
    rule.finish = [=, *this](RulePlan& plan) {
      const auto& local = plan.local_operands[input];
      if (rows == Rule::whole) return;
      std::int64_t groups = channels_of == 0 ? groups_of : local[1] * groups_of / channels_of;
      plan.replaced.emplace_back(static_cast<int>(numbers), c10::IValue(local[0]));
      plan.replaced.emplace_back(static_cast<int>(numbers + 1), c10::IValue(local[1]));
      plan.replaced.emplace_back(static_cast<int>(numbers + 3), c10::IValue(groups));
    };
  }

  Rule rule;
  std::int64_t rows_of, channels_of, groups_of;
  std::size_t numbers;
  int rows = Rule::whole, channels = Rule::whole;
};

Rule group_norm(const RuleCall& call) {
  Groups made(call, 0, 3);
  made.add_operands(call);
  std::vector<std::int64_t> of_groups = {made.rows_of, made.groups_of};
  Rule::Result mean{of_groups, made.labels(2)};
  made.rule.results = {{call.sizes(0), made.rule.operands[0]}, mean, mean};
  made.replace_numbers(0);
  made.rule.finish = [numbers = made.rule.finish, arguments = call.arguments()](RulePlan& plan) {
    numbers(plan);
    make_dense(plan, 0, 0, 0, arguments);
  };
  return made.rule;
}

// Schema: grad, input, mean, rstd, weight?, n, c, h * w, groups, mask -> three gradients
Rule group_norm_backward(const RuleCall& call) {
  Groups made(call, 1, 5);
  made.add_operands(call);
  Rule::Result of_weight{{made.channels_of}, made.labels(1)};
  made.rule.results = {{call.sizes(1), made.rule.operands[1]}, of_weight, of_weight};
  made.rule.linear = {{0}};
  made.replace_numbers(1);
  made.rule.finish = [numbers = made.rule.finish, arguments = call.arguments()](RulePlan& plan) {
    numbers(plan);
    make_dense(plan, 0, 3, 0, arguments);
  };
  return made.rule;
}

// Schema: input, normalized_shape, weight?, eps -> out, rstd
Rule rms_norm(const RuleCall& call) {
  Rule rule = layer_norm(call);
  rule.results.pop_back();
  return rule;
}

// Schema: grad, input, normalized_shape, rstd, weight?, mask -> two gradients
Rule rms_norm_backward(const RuleCall& call) {
  Rule rule = norm_backward(call, 3);
  rule.linear = {{0}};
  return rule;
}

using torch::jit::Stack;

// A softmax of rows that are split over several ranks.
struct SharedRows {
  std::int64_t dim;
  std::vector<int> axes;
  std::function<void(int, const at::Tensor&, Op)> all_reduce;

  void reduce(at::Tensor& row, Op op) const {
    row = row.contiguous();
    for (int axis : axes) all_reduce(axis, row, op);
  }
  [[nodiscard]] at::Tensor largest(const at::Tensor& x) const {
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = 1;
    at::Tensor most = x.size(dim) > 0
                          ? at::amax(x, {dim}, true)
                          : at::full(sizes, -std::numeric_limits<double>::infinity(), x.options());
    reduce(most, Op::max);
    return most;
  }
  [[nodiscard]] at::Tensor sum(const at::Tensor& x) const {
    at::Tensor sums = at::sum(x, {dim}, true);
    reduce(sums, Op::sum);
    return sums;
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& x, bool is_log, at::ScalarType dtype) const {
    at::Tensor wide = x.to(at::toOpMathType(x.scalar_type()));
    at::Tensor shifted = wide - largest(wide);
    at::Tensor powers = shifted.exp();
    at::Tensor sums = sum(powers);
    return (is_log ? shifted.sub_(sums.log_()) : powers.div_(sums)).to(dtype);
  }
  [[nodiscard]] at::Tensor backward(const at::Tensor& gradient, const at::Tensor& output,
                                    bool is_log, at::ScalarType dtype) const {
    auto wide = [](const at::Tensor& x) { return x.to(at::toOpMathType(x.scalar_type())); };
    at::Tensor g = wide(gradient), y = wide(output);
    at::Tensor result = is_log ? g - y.exp() * sum(g) : y * (g - sum(g * y));
    return result.to(dtype);
  }
};

// Schema: self, dim, half_to_float; or grad, output, dim, dtype
Rule softmax(const RuleCall& call, bool is_log) {
  bool is_backward = call.size() == 2;
  std::vector<std::int64_t> dims = dims_in(call.argument(call.size()), call.dim(0));
  Rule rule = same_sizes(call, dims);
  if (is_backward) rule.linear = {{0}};
  if (call.dim(0) == 0) return rule;
  for (const RuleOperand& operand : call.operands())
    for (Placement one : operand.placements)
      if (one.is_shard_of(dims[0])) rule.more.push_back({Placements(call.size(), one), {one}});
  rule.finish = [=, dim = dims[0], arguments = call.arguments()](RulePlan& plan) {
    SharedRows rows{dim, axes_that_cut(plan.operands[0], dim), plan.all_reduce};
    if (rows.axes.empty()) return;
    plan.kernel = [=](Stack& stack) {
      auto values = torch::jit::last(stack, arguments);
      at::Tensor first = values[0].toTensor();
      if (is_backward) {
        const auto dtype = static_cast<at::ScalarType>(values[3].toInt());
        give(stack, arguments, rows.backward(first, values[1].toTensor(), is_log, dtype));
      } else {
        const at::ScalarType dtype = values[2].toBool() ? at::kFloat : first.scalar_type();
        give(stack, arguments, rows.forward(first, is_log, dtype));
      }
    };
  };
  return rule;
}

// Rule without exchange between ranks: the dim is not sharded.
Rule safe_softmax(const RuleCall& call) {
  return same_sizes(call, dims_in(call.argument(1), call.dim(0)));
}

}  // namespace

void add_normalization_rules(RuleTable& table) {
  table["native_layer_norm"] = layer_norm;
  table["native_layer_norm_backward"] = layer_norm_backward;
  table["native_group_norm"] = group_norm;
  table["native_group_norm_backward"] = group_norm_backward;
  table["_fused_rms_norm"] = rms_norm;
  table["_fused_rms_norm_backward"] = rms_norm_backward;
  table["_softmax"] =
      table["_softmax_backward_data"] = [](const RuleCall& call) { return softmax(call, false); };
  table["_log_softmax"] = table["_log_softmax_backward_data"] = [](const RuleCall& call) {
    return softmax(call, true);
  };
  table["_safe_softmax"] = safe_softmax;
}

}  // namespace lockstep::global
