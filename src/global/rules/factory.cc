// Operations that create a tensor like a global tensor.
#include "global/rule_line.h"
#include "global/rules/dims.h"
#include "global/spec.h"

namespace lockstep::global {
namespace {

// Only sizes, dtype and device of self are used: a Partial self gives a replicated result.
Rule like(const RuleCall& call) {
  Rule rule = same_sizes(call, {});
  for (Placement partial : partials_of(call.operands()[0]))
    rule.more.push_back({{partial}, {Replicate()}});
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
      Dims dense = strides_in_order_of(local, strides);
      plan.replaced.emplace_back(
          2, c10::IValue(std::vector<std::int64_t>(dense.begin(), dense.end())));
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

void add_factory_rules(RuleTable& table) {
  for (const char* name : {"empty_like", "zeros_like", "ones_like", "full_like"})
    table[name] = like;
  for (const char* name : {"new_empty", "new_zeros", "new_ones", "new_full"})
    table[name] = [](const RuleCall& call) { return of_sizes(call, false); };
  table["new_empty_strided"] = [](const RuleCall& call) { return of_sizes(call, true); };
}

}  // namespace lockstep::global
