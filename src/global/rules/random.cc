// Random operations draw the numbers of the whole tensor on every rank, in the same order as a
// single process, and keep this rank's part. Generators in the same state give equal values;
// therefore their states are compared.

#include "global/mesh_context.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_strided.h>

#include <functional>
#include <string>
#include <utility>

namespace lockstep::global {
namespace {

using torch::jit::Stack;

// Returns the generator that a call draws from.
at::Generator generator_of(const Stack& stack, std::size_t arguments) {
  c10::Device device = at::kCPU;
  for (std::size_t i = stack.size() - arguments; i < stack.size(); ++i) {
    if (stack[i].isGenerator()) return stack[i].toGenerator();
    if (stack[i].isTensor()) device = stack[i].toTensor().device();
  }
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

using Finish = std::function<void(RulePlan& plan)>;

Finish compared(const RuleCall& call, Finish finish) {
  return [finish = std::move(finish), arguments = call.arguments(),
          operation = std::string(call.operation())](RulePlan& plan) {
    if (finish) finish(plan);
    plan.kernel = [draw = plan.kernel ? plan.kernel : plan.operation, context = plan.context,
                   arguments, operation](Stack& stack) {
      // On a mesh of one axis, operations use the group of that axis.
      Group& group = context->axes() == 1 ? context->group(0) : context->all();
      context->generator_check.look(generator_of(stack, arguments), operation, group);
      draw(stack);
    };
  };
}

namespace {

// Passes a tensor with the sizes of the whole as self. keep(stack, local, drawn) then gets this
// rank's parts of self and of the last result.
template <class Keep>
Finish drawn_for_whole(const RuleCall& call, Keep keep) {
  return compared(call, [=, arguments = call.arguments(), sizes = call.sizes(0),
                         strides = call.operands()[0].strides](RulePlan& plan) {
    if (plan.local_operands[0] == sizes) return;
    plan.kernel = [=, run = plan.operation, part = plan.part_of,
                   placements = plan.results.back()](Stack& stack) {
      c10::IValue& self = stack[stack.size() - arguments];
      const at::Tensor local = self.toTensor();
      self = at::empty_strided(sizes, strides, local.options());
      run(stack);
      keep(stack, local, part(stack.back().toTensor(), placements));
    };
  });
}

// The operation overwrites self.
Rule fill(const RuleCall& call) {
  Rule rule = same_sizes(call, {});
  rule.finish =
      drawn_for_whole(call, [](Stack& stack, const at::Tensor& local, const at::Tensor& drawn) {
        stack.back() = local.copy_(drawn);
      });
  return rule;
}

// Only sizes, dtype and device of self are used: a Partial self gives a replicated result.
Rule like(const RuleCall& call) {
  Rule rule = same_sizes(call, {});
  for (Placement partial : partials_of(call.operands()[0])) {
    Placements operands(call.size());  // self, and perhaps an out= tensor
    operands[0] = partial;
    rule.more.push_back({std::move(operands), {Replicate()}});
  }
  return rule;
}

Rule draw_like(const RuleCall& call) {
  Rule rule = like(call);
  rule.finish = drawn_for_whole(call, [](Stack& stack, const at::Tensor&, const at::Tensor& drawn) {
    stack.back() = drawn.clone(at::MemoryFormat::Contiguous);
  });
  return rule;
}

// Schema: input, p, train -> output, mask. The mask is drawn for the whole tensor; the rest is
// computed per element, as in LibTorch's kernel.
Rule dropout(const RuleCall& call) {
  Rule rule = same_sizes(call, {});
  const bool draws = !call.argument(2).isBool() || call.argument(2).toBool();
  const double p = call.argument(1).toDouble();
  rule.finish = compared(call);
  if (draws)
    rule.finish =
        drawn_for_whole(call, [p](Stack& stack, const at::Tensor& local, const at::Tensor& drawn) {
          const at::Tensor mask = drawn.clone(at::MemoryFormat::Contiguous);
          stack[stack.size() - 2] = local.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0.0);
          stack.back() = mask;
        });
  return rule;
}

// The value of each element is a probability, so every rank needs all values.
Rule draw_from(const RuleCall& call) {
  Rule rule = all_whole(call);
  rule.results = {{call.sizes(0), rule.operands[0]}};
  rule.finish = compared(call);
  return rule;
}

// Schema: self, num_samples, ...
Rule multinomial(const RuleCall& call) {
  Rule rule = draw_from(call);
  rule.results[0].sizes.back() = call.argument(1).toInt();
  return rule;
}

// Schema: self, size, [strides, ...]. The result is replicated, unless `size` equals the sizes of
// self.
Rule of_sizes(const RuleCall& call, bool has_strides) {
  std::vector<std::int64_t> sizes = call.argument(1).toIntVector();
  if (sizes == call.sizes(0)) {
    Rule rule = like(call);
    std::vector<std::int64_t> strides;
    if (has_strides) strides = call.argument(2).toIntVector();
    rule.finish = [=](RulePlan& plan) {
      const std::vector<std::int64_t>& local = plan.local_results[0];
      plan.replaced.emplace_back(1, c10::IValue(local));
      if (!has_strides) return;
      plan.replaced.emplace_back(2, c10::IValue(at::infer_dense_strides(local, strides)));
    };
    return rule;
  }
  Rule rule;
  rule.operands.emplace_back(call.sizes(0).size(), Rule::whole);
  rule.unread = {0};
  std::vector<int> whole(sizes.size(), Rule::whole);
  rule.results = {{std::move(sizes), std::move(whole)}};
  return rule;
}

}  // namespace

void add_random_rules(RuleTable& table) {
  for (const char* name : {"bernoulli_", "uniform_", "normal_", "random_", "exponential_",
                           "log_normal_", "cauchy_", "geometric_"})
    table[name] = [](const RuleCall& call) {
      return call.size() == 1 ? fill(call) : draw_from(call);
    };
  for (const char* name : {"rand_like", "randn_like", "randint_like"}) table[name] = draw_like;
  table["native_dropout"] = dropout;
  table["bernoulli"] = draw_from;
  table["multinomial"] = multinomial;
  for (const char* name : {"empty_like", "zeros_like", "ones_like", "full_like"})
    table[name] = like;
  for (const char* name : {"new_empty", "new_zeros", "new_ones", "new_full"})
    table[name] = [](const RuleCall& call) { return of_sizes(call, false); };
  table["new_empty_strided"] = [](const RuleCall& call) { return of_sizes(call, true); };
}

}  // namespace lockstep::global
