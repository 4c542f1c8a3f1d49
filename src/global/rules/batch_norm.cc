// Normalisation of channels over a batch. In training, statistics cover the whole batch: if rows
// are sharded, ranks sum their statistics.
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/OpMathType.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <utility>

namespace lockstep::global {
namespace {

using torch::jit::Stack;

// Labels the channels of every operand: dim 1 of input and gradient, and dim 0 of the others.
Rule by_channels(const RuleCall& call, std::size_t inputs, bool cut) {
  check(call.dim(0) > 1, "{}: expected an input with channels in dim 1, found one with dim() {}",
        call.operation(), call.dim(0));
  Rule rule;
  int channels = rule.add({.cut = cut, .empty = false, .reduce = std::nullopt});
  for (std::size_t i = 0; i < call.size(); ++i) {
    std::vector<int> labels(call.sizes(i).size(), Rule::whole);
    std::size_t dim = i < inputs ? 1 : 0;
    bool has_channels = dim < labels.size() && call.sizes(i)[dim] == call.sizes(0)[1];
    if (has_channels) labels[dim] = channels;
    rule.operands.push_back(std::move(labels));
  }
  return rule;
}

// Adds a choice that shards the first `inputs` operands by rows and replicates the others.
void add_rows(Rule& rule, const RuleCall& call, std::size_t inputs, Placements results) {
  RuleChoice choice{Placements(call.size()), std::move(results)};
  for (std::size_t i = 0; i < inputs; ++i) choice.operands[i] = Shard(0);
  rule.more.push_back(std::move(choice));
}

// Sums of each channel over the elements of all ranks.
struct ChannelSums {
  std::vector<int> axes;  // axes that shard rows
  std::function<void(int, const at::Tensor&, Op)> all_reduce;
  double count = 0;  // elements of a channel

  [[nodiscard]] at::Tensor here(const at::Tensor& x) const {
    std::vector<std::int64_t> dims = {0};
    for (std::int64_t dim = 2; dim < x.dim(); ++dim) dims.push_back(dim);
    return at::sum(x, dims).contiguous();
  }
  [[nodiscard]] at::Tensor everywhere(const at::Tensor& sums) const {
    at::Tensor all = sums.clone();
    for (int axis : axes) all_reduce(axis, all, Op::sum);
    return all;
  }
};

// Views [c] as [1, c, 1, ...].
at::Tensor spread(const at::Tensor& channels, const at::Tensor& like) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(like.dim()), 1);
  sizes[1] = channels.numel();
  return channels.to(at::toOpMathType(like.scalar_type())).view(sizes);
}

at::Tensor tensor_or_none(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

ChannelSums sums_of(const RulePlan& plan, const std::vector<std::int64_t>& sizes) {
  ChannelSums sums{.axes = axes_that_cut(plan.operands[0], 0),
                   .all_reduce = plan.all_reduce,
                   .count = static_cast<double>(sizes[0])};
  for (std::size_t dim = 2; dim < sizes.size(); ++dim)
    sums.count *= static_cast<double>(sizes[dim]);
  return sums;
}

// Updates running += momentum * (now - running), with LibTorch's rounding.
void update_running(const c10::IValue& running, const at::Tensor& now, double momentum) {
  at::Tensor tensor = tensor_or_none(running);
  if (tensor.defined()) tensor.mul_(1 - momentum).add_(now.to(tensor.scalar_type()), momentum);
}

void normalize_over_ranks(Stack& stack, std::size_t arguments, const ChannelSums& sums) {
  auto values = torch::jit::last(stack, arguments);
  at::Tensor input = values[0].toTensor(), weight = tensor_or_none(values[1]);
  at::Tensor bias = tensor_or_none(values[2]);
  double momentum = values[6].toDouble(), eps = values[7].toDouble(), n = sums.count;
  at::Tensor wide = input.to(at::toOpMathType(input.scalar_type()));
  at::Tensor mean = sums.everywhere(sums.here(wide)).div_(n);
  at::Tensor centered = wide - spread(mean, input);
  at::Tensor variance = sums.everywhere(sums.here(centered * centered)).div_(n);
  at::Tensor inverse = (variance + eps).rsqrt();
  at::Tensor out = centered.mul_(spread(inverse, input));
  if (weight.defined()) out.mul_(spread(weight, input));
  if (bias.defined()) out.add_(spread(bias, input));
  update_running(values[3], mean, momentum);
  update_running(values[4], variance * (n / (n - 1)), momentum);
  at::ScalarType kept = weight.defined() ? weight.scalar_type() : input.scalar_type();
  torch::jit::drop(stack, arguments);
  torch::jit::push(stack, out.to(input.scalar_type()), mean.to(kept), inverse.to(kept));
}

void differentiate_over_ranks(Stack& stack, std::size_t arguments, const ChannelSums& sums) {
  auto values = torch::jit::last(stack, arguments);
  at::Tensor gradient = values[0].toTensor(), input = values[1].toTensor();
  at::Tensor weight = tensor_or_none(values[2]);
  auto mask = values[9].toBoolList();
  at::ScalarType wide = at::toOpMathType(input.scalar_type());
  at::Tensor g = gradient.to(wide), inverse = spread(values[6].toTensor(), input);
  at::Tensor normal = (input.to(wide) - spread(values[5].toTensor(), input)) * inverse;
  at::Tensor of_bias = sums.here(g), of_weight = sums.here(g * normal);
  at::Tensor of_input;
  if (mask[0]) {
    at::Tensor all = sums.everywhere(at::stack({of_bias, of_weight})).div_(sums.count);
    of_input = (g - spread(all[0], input) - normal * spread(all[1], input)) * inverse;
    if (weight.defined()) of_input.mul_(spread(weight, input));
    of_input = of_input.to(input.scalar_type());
  }
  at::ScalarType kept = weight.defined() ? weight.scalar_type() : input.scalar_type();
  std::array<at::Tensor, 3> results = {of_input, mask[1] ? of_weight.to(kept) : at::Tensor(),
                                       mask[2] ? of_bias.to(kept) : at::Tensor()};
  torch::jit::drop(stack, arguments);
  for (at::Tensor& result : results) stack.emplace_back(std::move(result));
}

// Handles a shard without elements, which LibTorch refuses.
void run_without_elements(Stack& stack, std::size_t arguments, bool is_backward) {
  auto values = torch::jit::last(stack, arguments);
  at::Tensor input = values[is_backward ? 1 : 0].toTensor();
  std::int64_t kept = is_backward ? input.size(1) : 0;
  at::Tensor of_channels = at::zeros({kept}, input.options());
  torch::jit::drop(stack, arguments);
  torch::jit::push(stack, at::empty(input.sizes(), input.options()), of_channels,
                   of_channels.clone());
}

void evaluate_empty_shards(Rule& rule, const RuleCall& call, bool is_backward) {
  rule.finish = [=, arguments = call.arguments()](RulePlan& plan) {
    const auto& local = plan.local_operands[0];
    if (std::ranges::find(local, 0) == local.end()) return;
    plan.kernel = [=](Stack& stack) { run_without_elements(stack, arguments, is_backward); };
  };
}

// Schema: input, weight?, bias?, running_mean?, running_var?, training, momentum, eps -> out,
// save_mean, save_invstd
Rule batch_norm(const RuleCall& call) {
  bool training = call.argument(5).toBool();
  Rule rule = by_channels(call, 1, training);
  // Evaluation saves no statistics.
  std::vector<std::int64_t> kept = {training ? call.sizes(0)[1] : 0};
  int channels = training ? rule.operands[0][1] : Rule::whole;
  rule.results = {{call.sizes(0), rule.operands[0]}, {kept, {channels}}, {kept, {channels}}};
  add_rows(rule, call, 1, {Shard(0), Replicate(), Replicate()});
  if (!training) {
    RuleChoice choice{Placements(call.size(), Shard(0)), {Shard(1), Replicate(), Replicate()}};
    choice.operands[0] = Shard(1);
    rule.more.push_back(std::move(choice));
    evaluate_empty_shards(rule, call, false);
    return rule;
  }
  rule.finish = [sizes = call.sizes(0), arguments = call.arguments()](RulePlan& plan) {
    ChannelSums sums = sums_of(plan, sizes);
    if (sums.axes.empty()) return;
    plan.kernel = [=](Stack& stack) { normalize_over_ranks(stack, arguments, sums); };
  };
  return rule;
}

// Schema: grad, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?, train, eps,
// mask -> three gradients
Rule batch_norm_backward(const RuleCall& call) {
  Rule rule = by_channels(call, 2, true);
  bool training = call.argument(7).toBool();
  int channels = rule.operands[1][1];
  std::vector<std::int64_t> shape = {call.sizes(1)[1]};
  rule.results = {{call.sizes(1), rule.operands[1]}, {shape, {channels}}, {shape, {channels}}};
  add_rows(rule, call, 2, {Shard(0), Partial(), Partial()});
  if (!training) {
    evaluate_empty_shards(rule, call, true);
    return rule;
  }
  rule.finish = [sizes = call.sizes(1), arguments = call.arguments()](RulePlan& plan) {
    ChannelSums sums = sums_of(plan, sizes);
    if (sums.axes.empty()) return;
    plan.kernel = [=](Stack& stack) { differentiate_over_ranks(stack, arguments, sums); };
  };
  return rule;
}

// cuDNN's operations, which LibTorch chooses on CUDA. LibTorch's own kernels replace cuDNN's, whose
// saved statistics have an unknown format, so that ranks can sum them.

void run_native(const char* name, Stack& stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
}

// Schema: that of native_batch_norm, and a fourth result: memory of cuDNN. Here it has the sizes of
// the saved statistics and no meaning.
Rule cudnn_batch_norm(const RuleCall& call) {
  Rule rule = batch_norm(call);
  rule.results.push_back(rule.results.back());
  for (RuleChoice& choice : rule.more) choice.results.push_back(Replicate());
  rule.finish = [inner = std::move(rule.finish)](RulePlan& plan) {
    if (inner) inner(plan);
    plan.kernel = [kernel = std::move(plan.kernel)](Stack& stack) {
      if (kernel)
        kernel(stack);
      else
        run_native("aten::native_batch_norm", stack);
      const at::Tensor& saved = torch::jit::peek(stack, 1, 3).toTensor();
      torch::jit::push(stack, at::empty(saved.sizes(), saved.options().dtype(at::kByte)));
    };
  };
  return rule;
}

// Schema: input, grad, weight, running_mean?, running_var?, save_mean?, save_var?, eps, memory of
// cuDNN -> three gradients
Rule cudnn_batch_norm_backward(const RuleCall& call) {
  Rule rule = by_channels(call, 2, true);
  const int channels = rule.operands[0][1];
  const std::vector<std::int64_t> shape = {call.sizes(0)[1]};
  rule.results = {{call.sizes(0), rule.operands[0]}, {shape, {channels}}, {shape, {channels}}};
  add_rows(rule, call, 2, {Shard(0), Partial(), Partial()});
  rule.finish = [sizes = call.sizes(0), arguments = call.arguments()](RulePlan& plan) {
    plan.kernel = [sums = sums_of(plan, sizes), arguments](Stack& stack) {
      const Stack given = torch::jit::pop(stack, arguments);
      stack.insert(stack.end(), {given[1], given[0], given[2], given[3], given[4], given[5],
                                 given[6], true, given[7], c10::List<bool>({true, true, true})});
      constexpr std::size_t native_arguments = 10;
      if (sums.axes.empty())
        run_native("aten::native_batch_norm_backward", stack);
      else
        differentiate_over_ranks(stack, native_arguments, sums);
    };
  };
  return rule;
}

}  // namespace

void add_batch_norm_rules(RuleTable& table) {
  table["cudnn_batch_norm"] = cudnn_batch_norm;
  table["cudnn_batch_norm_backward"] = cudnn_batch_norm_backward;
  table["native_batch_norm"] = batch_norm;
  table["native_batch_norm_backward"] = batch_norm_backward;
}

}  // namespace lockstep::global
