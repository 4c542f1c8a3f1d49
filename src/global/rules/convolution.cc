// Convolutions are sharded by rows of the batch or by channels; pooling by both.
#include "base/format.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

namespace lockstep::global {
namespace {

using Sizes = std::vector<std::int64_t>;

std::int64_t at_or_last(const Sizes& values, std::size_t i) {
  return values.empty() ? 0 : values[std::min(i, values.size() - 1)];
}

// Schema: input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups
struct Convolution {
  Convolution(const RuleCall& call, std::size_t input, std::size_t weight, std::size_t stride)
      : call(call),
        in(call.sizes(input)),
        kernel(call.sizes(weight)),
        strides(call.argument(stride).toIntVector()),
        padding(call.argument(stride + 1).toIntVector()),
        dilation(call.argument(stride + 2).toIntVector()),
        transposed(call.argument(stride + 3).toBool()),
        output_padding(call.argument(stride + 4).toIntVector()),
        groups(call.argument(stride + 5).toInt()) {
    check(in.size() > 2 && kernel.size() == in.size() && groups > 0 &&
              std::ranges::all_of(strides, [](auto each) { return each > 0; }),
          "{}: expected an input and a weight of at least 3 dims, and strides and groups above 0, "
          "found an input of sizes [{}], a weight of sizes [{}], strides [{}] and groups {}",
          call.operation(), listed(in, ", "), listed(kernel, ", "), listed(strides, ", "), groups);
  }

  [[nodiscard]] Sizes output() const {
    Sizes out = {in[0], transposed ? kernel[1] * groups : kernel[0]};
    for (std::size_t i = 2; i < in.size(); ++i) {
      std::int64_t reach = at_or_last(dilation, i - 2) * (kernel[i] - 1);
      std::int64_t pads = 2 * at_or_last(padding, i - 2), step = at_or_last(strides, i - 2);
      out.push_back(transposed
                        ? (in[i] - 1) * step - pads + reach + at_or_last(output_padding, i - 2) + 1
                        : (in[i] + pads - reach - 1) / step + 1);
    }
    return out;
  }
  [[nodiscard]] bool has_channels() const { return !transposed && groups == 1; }

  const RuleCall& call;
  Sizes in, kernel, strides, padding, dilation;
  bool transposed;
  Sizes output_padding;
  std::int64_t groups;
};

Rule convolution(const RuleCall& call) {
  Convolution made(call, 0, 1, 3);
  Rule rule = all_whole(call);
  Sizes out = made.output();
  rule.results = {{out, std::vector<int>(out.size(), Rule::whole)}};
  rule.operands[0][0] = rule.results[0].dims[0] = rule.add({.empty = false});
  if (!made.has_channels()) return rule;
  int outgoing = rule.add({.empty = false});
  rule.operands[1][0] = rule.results[0].dims[1] = outgoing;
  bool has_bias = call.size() > 2;
  if (has_bias) rule.operands[2][0] = outgoing;
  Rule::Label summed{.empty = false};
  if (has_bias) summed.with_partial = {2};
  rule.operands[0][1] = rule.operands[1][1] = rule.add(summed);
  return rule;
}

// Schema: grad, input, weight, bias_sizes?, stride, ..., groups, mask -> three gradients
Rule convolution_backward(const RuleCall& call) {
  Convolution made(call, 1, 2, 4);
  Rule rule = all_whole(call);
  Sizes bias = {call.sizes(0)[1]};
  rule.results = {
      {call.sizes(1), rule.operands[1]}, {call.sizes(2), rule.operands[2]}, {bias, {Rule::whole}}};
  int rows = rule.add({.empty = false});
  rule.operands[0][0] = rule.operands[1][0] = rule.results[0].dims[0] = rows;
  if (!made.has_channels()) return rule;
  int outgoing = rule.add({.empty = false});
  rule.operands[0][1] = rule.operands[2][0] = outgoing;
  rule.results[1].dims[0] = rule.results[2].dims[0] = outgoing;
  // The bias does not depend on incoming channels.
  rule.more.push_back(
      {{Replicate(), Shard(1), Shard(1)}, {Shard(1), Shard(1), Replicate()}, {call.sizes(1)[1]}});
  rule.finish = [](RulePlan& plan) {
    plan.replaced.emplace_back(3, c10::IValue(Sizes{plan.local_operands[2][0]}));
  };
  if (call.argument(3).isNone()) rule.finish = {};
  return rule;
}

std::int64_t pooled(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                    std::int64_t dilation, bool up) {
  std::int64_t span = in + 2 * padding - dilation * (kernel - 1) - 1;
  std::int64_t out = (span + (up ? stride - 1 : 0)) / stride + 1;
  if (up && (out - 1) * stride >= in + padding) --out;
  return out;
}

// Returns labels for all dims except the last two.
std::vector<int> planes(Rule& rule, const Sizes& sizes) {
  auto dims = static_cast<std::int64_t>(sizes.size());
  std::vector<int> labels = labels_but(rule, sizes, {dims - 2, dims - 1});
  for (Rule::Label& label : rule.labels) label.empty = false;
  return labels;
}

// Schema: self, kernel_size, stride, padding, [dilation,] ceil_mode
Rule pooling(const RuleCall& call, bool has_dilation) {
  Rule rule;
  std::vector<int> labels = planes(rule, call.sizes(0));
  Sizes kernel = call.argument(1).toIntVector(), stride = call.argument(2).toIntVector();
  Sizes padding = call.argument(3).toIntVector(), dilation = {1};
  if (has_dilation) dilation = call.argument(4).toIntVector();
  bool up = call.argument(has_dilation ? 5 : 4).toBool();
  if (stride.empty()) stride = kernel;
  Sizes sizes = call.sizes(0);
  for (std::size_t i = 0; i < 2; ++i) {
    std::int64_t& size = sizes[sizes.size() - 2 + i];
    size = pooled(size, at_or_last(kernel, i), at_or_last(stride, i), at_or_last(padding, i),
                  at_or_last(dilation, i), up);
  }
  rule.operands = {labels};
  rule.results.assign(call.results(), {sizes, labels});
  return rule;
}

// Schema: grad, self, ..., [indices]. All operands share the labels of all but the last two dims.
Rule pooling_backward(const RuleCall& call) {
  Rule rule;
  std::vector<int> labels = planes(rule, call.sizes(1));
  rule.operands.assign(call.size(), labels);
  rule.results = {{call.sizes(1), labels}};
  return rule;
}

// Schema: self, output_size
Rule adaptive_pooling(const RuleCall& call) {
  Rule rule;
  std::vector<int> labels = planes(rule, call.sizes(0));
  Sizes sizes = call.sizes(0), wanted = call.argument(1).toIntVector();
  for (std::size_t i = 0; i < 2; ++i) sizes[sizes.size() - 2 + i] = at_or_last(wanted, i);
  rule.operands = {labels};
  rule.results.assign(call.results(), {sizes, labels});
  return rule;
}

}  // namespace

void add_convolution_rules(RuleTable& table) {
  table["convolution"] = convolution;
  table["convolution_backward"] = convolution_backward;
  table["max_pool2d_with_indices"] = [](const RuleCall& call) { return pooling(call, true); };
  table["avg_pool2d"] = [](const RuleCall& call) { return pooling(call, false); };
  table["_adaptive_avg_pool2d"] = adaptive_pooling;
  for (const char* name :
       {"max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward"})
    table[name] = pooling_backward;
}

}  // namespace lockstep::global
