// Random operations draw the numbers of the whole tensor on every rank, in the order in which one
// process does, and keep this rank's: generators in the same state give the same values, and these
// are compared.
#include "global/mesh_context.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/Context.h>
#include <ATen/ops/empty_strided.h>

#include <functional>
#include <string>
#include <utility>

namespace lockstep::global {
namespace {

using torch::jit::Stack;

struct Whole {
  explicit Whole(const RuleOperand& operand) : sizes(operand.sizes), strides(operand.strides) {}

  [[nodiscard]] at::Tensor like(const at::Tensor& local) const {
    return at::empty_strided(sizes, strides, local.options());
  }

  std::vector<std::int64_t> sizes, strides;
};

// What a call draws from.
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
      // That of one axis is the one in which operations meet.
      Group& group = context->axes() == 1 ? context->group(0) : context->all();
      context->generator_check.look(generator_of(stack, arguments), operation, group);
      draw(stack);
    };
  };
}

namespace {

// self is overwritten.
Rule fill(const RuleCall& call) {
  Rule rule = same_sizes(call, {});
  rule.finish = compared(
      call, [whole = Whole(call.operands()[0]), arguments = call.arguments()](RulePlan& plan) {
        if (plan.local_operands[0] == whole.sizes) return;
        plan.kernel = [=, run = plan.operation, part = plan.part_of,
                       placements = plan.operands[0]](Stack& stack) {
          c10::IValue& self = stack[stack.size() - arguments];
          at::Tensor local = self.toTensor();
          at::Tensor all = whole.like(local);
          self = all;
          run(stack);
          local.copy_(part(all, placements));
          stack.back() = local;
        };
      });
  return rule;
}

// self says sizes and dtype only; a Partial one gives a replicated result.
Rule draw_like(const RuleCall& call) {
  Rule rule = same_sizes(call, {});
  for (Placement partial : partials_of(call.operands()[0]))
    rule.more.push_back({{partial}, {Replicate()}});
  rule.finish = compared(call, [whole = Whole(call.operands()[0]),
                                arguments = call.arguments()](RulePlan& plan) {
    if (plan.local_operands[0] == whole.sizes) return;
    plan.kernel = [=, run = plan.operation, part = plan.part_of,
                   placements = plan.results[0]](Stack& stack) {
      c10::IValue& self = stack[stack.size() - arguments];
      self = whole.like(self.toTensor());
      run(stack);
      stack.back() = part(stack.back().toTensor(), placements).clone(at::MemoryFormat::Contiguous);
    };
  });
  return rule;
}

// input, p, train -> output, mask. The mask is drawn for the whole, and the rest is what the kernel
// computes of an element.
Rule dropout(const RuleCall& call) {
  Rule rule = same_sizes(call, {});
  const bool draws = !call.argument(2).isBool() || call.argument(2).toBool();
  const double p = call.argument(1).toDouble();
  rule.finish = compared(
      call, [=, whole = Whole(call.operands()[0]), arguments = call.arguments()](RulePlan& plan) {
        if (!draws || plan.local_operands[0] == whole.sizes) return;
        plan.kernel = [=, run = plan.operation, part = plan.part_of,
                       placements = plan.results[0]](Stack& stack) {
          c10::IValue& input = stack[stack.size() - arguments];
          const at::Tensor local = input.toTensor();
          input = whole.like(local).zero_();
          run(stack);
          const at::Tensor mask =
              part(stack.back().toTensor(), placements).clone(at::MemoryFormat::Contiguous);
          stack[stack.size() - 2] = local.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0.0);
          stack.back() = mask;
        };
      });
  return rule;
}

// Each element's value says with which probability it is drawn: all of it is needed.
Rule draw_from(const RuleCall& call) {
  Rule rule;
  for (std::size_t i = 0; i < call.size(); ++i)
    rule.operands.emplace_back(call.sizes(i).size(), Rule::whole);
  rule.results = {{call.sizes(0), rule.operands[0]}};
  rule.finish = compared(call);
  return rule;
}

// self, num_samples, ...
Rule multinomial(const RuleCall& call) {
  Rule rule = draw_from(call);
  rule.results[0].sizes.back() = call.argument(1).toInt();
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
}

}  // namespace lockstep::global
