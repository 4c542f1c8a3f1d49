// Rules that are one line (lockstep/global/rule.h).
#pragma once

#include <lockstep/global/rule.h>

#include <string>
#include <string_view>
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

}  // namespace lockstep::global
