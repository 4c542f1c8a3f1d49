// Rules in the form of one line (lockstep/global/rule.h).
#pragma once

#include <lockstep/global/rule.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::global {

struct DimNames {
  struct Name {
    std::string text;
    // "?": may have one element, which is broadcast to the length of its name.
    bool is_spread = false;
  };
  bool any = false;      // "_"
  bool leading = false;  // "..."
  std::vector<Name> names;
};

struct RuleLine {
  std::vector<DimNames> operands;
  std::vector<DimNames> results;
};

// Throws InvalidArgument if the line cannot be parsed.
[[nodiscard]] RuleLine parse_rule(std::string_view line);

// Applies the line to a call. Throws InvalidArgument if the tensors or dims of the call do not
// match the line.
[[nodiscard]] Rule rule_of(const RuleLine& line, const RuleCall& call);

// Makes a rule function from a line and the sets of operands in which the operation is linear.
[[nodiscard]] RuleFunction by_line(std::string_view line,
                                   std::vector<std::vector<int>> linear = {});

// Indexed by the name of the operation without "aten::".
using RuleTable = std::unordered_map<std::string, RuleFunction>;

void add_pointwise_rules(RuleTable& table);
void add_matmul_rules(RuleTable& table);
void add_reduction_rules(RuleTable& table);
void add_view_rules(RuleTable& table);
void add_joining_rules(RuleTable& table);
void add_indexing_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);
void add_normalization_rules(RuleTable& table);
void add_batch_norm_rules(RuleTable& table);
void add_random_rules(RuleTable& table);
void add_attention_rules(RuleTable& table);
void add_convolution_rules(RuleTable& table);

// Returns the rule of element-wise operations: operands are broadcast, and results have the
// broadcast sizes.
[[nodiscard]] RuleFunction pointwise();

// Returns the rule for one element of the lists of a list operation, such as `_foreach_mul_`. Empty
// for other operations.
[[nodiscard]] RuleFunction rule_of_element(std::string_view name);

}  // namespace lockstep::global
