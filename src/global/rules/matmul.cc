#include "global/rule_line.h"

#include <algorithm>

namespace lockstep::global {

// If the dim that two operands share is sharded, the result is Partial; an addend is then Partial
// too. Otherwise it is replicated.
void add_matmul_rules(RuleTable& table) {
  table["mm"] = by_line("m k, k n -> m n", {{0}, {1}});
  table["bmm"] = by_line("b m k, b k n -> b m n", {{0}, {1}});
  table["mv"] = by_line("m k, k -> m", {{0}, {1}});
  table["dot"] = by_line("k, k -> ", {{0}, {1}});
  auto with_addend = [](std::string_view line) {
    return [rule = parse_rule(line)](const RuleCall& call) {
      // The addend is broadcast over leading dims that it lacks.
      RuleLine mine = rule;
      auto& names = mine.operands[0].names;
      std::size_t dims = call.sizes(0).size();
      if (dims < names.size())
        names.erase(names.begin(), names.end() - static_cast<std::ptrdiff_t>(dims));
      Rule made = rule_of(mine, call);
      made.linear = {{0, 1}, {0, 2}};
      // If the shared dim is sharded, the addend is one of the partial sums.
      for (int label = 0; label < static_cast<int>(made.labels.size()); ++label) {
        const auto& result = made.results[0].dims;
        if (std::ranges::find(result, label) != result.end()) continue;
        made.labels[static_cast<std::size_t>(label)].with_partial = {0};
      }
      return made;
    };
  };
  table["addmm"] = with_addend("m? n?, m k, k n -> m n");
  table["addmv"] = with_addend("m?, m k, k -> m");
  table["baddbmm"] = with_addend("b? m? n?, b m k, b k n -> b m n");
}

}  // namespace lockstep::global
