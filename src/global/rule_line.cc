#include "global/rule_line.h"

#include "base/check.h"
#include "base/text.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace lockstep::global {
namespace {

std::string_view trimmed(std::string_view text) {
  auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

bool is_name(std::string_view text) {
  return text == "1" ||
         (!text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
          std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c); }));
}

DimNames dim_names(std::string_view text, std::string_view line) {
  DimNames result;
  if (text == "_") {
    result.any = true;
    return result;
  }
  bool first = true;
  for_each_part(text, ' ', [&](std::string_view name) {
    if (name.empty()) return;
    if (name == "..." && first) {
      result.leading = true;
    } else {
      bool is_spread = name.ends_with('?');
      if (is_spread) name.remove_suffix(1);
      check(is_name(name), "register_rule: expected names of dims, found '{}' in '{}'", name, line);
      result.names.push_back({std::string(name), is_spread});
    }
    first = false;
  });
  return result;
}

// The labels of a call by name; leading dims by their distance from the last leading dim.
class Labels {
 public:
  Labels(Rule& rule, std::string_view operation) : rule_(rule), operation_(operation) {}

  int of(const DimNames::Name& name, std::int64_t length) {
    check(name.text != "1" || length == 1,
          "{}: expected a dim of size 1, as its rule says, found {}", operation_, length);
    if (name.text == "1" || (name.is_spread && length == 1)) return Rule::whole;
    auto [place, is_new] = known_.try_emplace(name.text);
    Known& known = place->second;
    bool may_be_cut = std::islower(static_cast<unsigned char>(name.text[0])) != 0;
    if (is_new) known = {may_be_cut ? rule_.add() : Rule::whole, length};
    check(length == known.length, "{}: expected size {} in the dim '{}' of its rule, found {}",
          operation_, known.length, name.text, length);
    return known.label;
  }
  int leading(std::int64_t from_end, std::int64_t length) {
    Known& known = leading_[from_end];
    if (length == 1) return Rule::whole;
    if (known.label == Rule::whole) known = {rule_.add(), length};
    check(length == known.length,
          "{}: expected size {} in a leading dim, as in another tensor, found {}", operation_,
          known.length, length);
    return known.label;
  }
  [[nodiscard]] std::int64_t length(const std::string& name) const {
    auto found = known_.find(name);
    return found == known_.end() ? 1 : found->second.length;
  }
  // Adds to `result` the dims to which all leading dims broadcast.
  void add_leading(Rule::Result& result, std::int64_t most) const {
    for (std::int64_t i = most; i-- > 0;) {
      auto found = leading_.find(i);
      bool is_one = found == leading_.end() || found->second.label == Rule::whole;
      result.sizes.push_back(is_one ? 1 : found->second.length);
      result.dims.push_back(is_one ? Rule::whole : found->second.label);
    }
  }
  [[nodiscard]] int label(const std::string& name) const {
    auto found = known_.find(name);
    return found == known_.end() ? Rule::whole : found->second.label;
  }

 private:
  struct Known {
    int label = Rule::whole;
    std::int64_t length = 1;
  };
  Rule& rule_;
  std::string_view operation_;
  std::map<std::string, Known> known_;
  std::map<std::int64_t, Known> leading_;
};

}  // namespace

RuleLine parse_rule(std::string_view line) {
  auto arrow = line.find("->");
  check(arrow != std::string_view::npos,
        "register_rule: expected dims of the tensors, '->' and dims of the results, found '{}'",
        line);
  RuleLine result;
  for_each_part(line.substr(0, arrow), ',', [&](std::string_view text) {
    result.operands.push_back(dim_names(trimmed(text), line));
  });
  for_each_part(line.substr(arrow + 2), ',', [&](std::string_view text) {
    result.results.push_back(dim_names(trimmed(text), line));
  });
  return result;
}

Rule rule_of(const RuleLine& line, const RuleCall& call) {
  Rule rule;
  Labels labels(rule, call.operation());
  check(call.size() <= line.operands.size(),
        "{}: expected at most as many tensors as its rule has, {}, found {}", call.operation(),
        line.operands.size(), call.size());
  std::int64_t most = 0;  // largest number of leading dims
  for (std::size_t i = 0; i < call.size(); ++i) {
    const auto& sizes = call.sizes(i);
    const DimNames& names = line.operands[i];
    std::vector<int> dims(sizes.size(), Rule::whole);
    if (!names.any) {
      bool fits =
          names.leading ? sizes.size() >= names.names.size() : sizes.size() == names.names.size();
      check(fits, "{}: expected dim() {} of tensor {}, as its rule says, found {}",
            call.operation(), names.names.size(), i, sizes.size());
      std::size_t leading = sizes.size() - names.names.size();
      for (std::size_t dim = 0; dim < sizes.size(); ++dim)
        dims[dim] = dim < leading
                        ? labels.leading(static_cast<std::int64_t>(leading - dim - 1), sizes[dim])
                        : labels.of(names.names[dim - leading], sizes[dim]);
      most = std::max(most, static_cast<std::int64_t>(leading));
    }
    rule.operands.push_back(std::move(dims));
  }
  for (const DimNames& names : line.results) {
    Rule::Result result;
    if (names.leading) labels.add_leading(result, most);
    for (const DimNames::Name& name : names.names) {
      result.sizes.push_back(labels.length(name.text));
      result.dims.push_back(labels.label(name.text));
    }
    rule.results.push_back(std::move(result));
  }
  return rule;
}

RuleFunction by_line(std::string_view line, std::vector<std::vector<int>> linear) {
  return [line = parse_rule(line), linear = std::move(linear)](const RuleCall& call) {
    Rule rule = rule_of(line, call);
    rule.linear = linear;
    return rule;
  };
}

}  // namespace lockstep::global
