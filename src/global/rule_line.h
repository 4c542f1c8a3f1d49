// Rules that are one line (lockstep/global/rule.h).
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
    bool is_spread = false;  // "?": it may have one element where others of its name have more
  };
  bool any = false;      // "_"
  bool leading = false;  // "..."
  std::vector<Name> names;
};

struct RuleLine {
  std::vector<DimNames> operands;
  std::vector<DimNames> results;
};

// InvalidArgument when it cannot be read.
[[nodiscard]] RuleLine parse_rule(std::string_view line);

// What it says of a call. InvalidArgument when the call has other tensors or dims than the line.
[[nodiscard]] Rule rule_of(const RuleLine& line, const RuleCall& call);

// A function for a table of rules: the line, and the sets of operands in which it is linear.
[[nodiscard]] RuleFunction by_line(std::string_view line,
                                   std::vector<std::vector<int>> linear = {});

// By the name of an operation without "aten::".
using RuleTable = std::unordered_map<std::string, RuleFunction>;

void add_pointwise_rules(RuleTable& table);
void add_matmul_rules(RuleTable& table);
void add_reduction_rules(RuleTable& table);
void add_view_rules(RuleTable& table);
void add_diagonal_rules(RuleTable& table);
void add_joining_rules(RuleTable& table);
void add_indexing_rules(RuleTable& table);
void add_softmax_rules(RuleTable& table);
void add_nll_loss_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);
// After those of indexing, to which it adds cuts of a table's rows.
void add_vocabulary_rules(RuleTable& table);
void add_normalization_rules(RuleTable& table);
void add_batch_norm_rules(RuleTable& table);
void add_random_rules(RuleTable& table);
void add_attention_rules(RuleTable& table);
void add_convolution_rules(RuleTable& table);
void add_factory_rules(RuleTable& table);

// For every operation that treats elements apart: operands are broadcast, results have their sizes.
[[nodiscard]] RuleFunction pointwise();

// Of a list operation, `_foreach_mul_` and the like: for one element of its lists. Empty for
// others.
[[nodiscard]] RuleFunction rule_of_element(std::string_view name);

}  // namespace lockstep::global
