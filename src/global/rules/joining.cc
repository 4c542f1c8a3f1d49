// Joining and splitting of tensors.
#include "base/format.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

namespace lockstep::global {
namespace {

using torch::jit::Stack;

// Returns true for an operand that cat() ignores: an empty tensor of one dim.
bool is_skipped(const RuleCall& call, std::size_t operand, std::int64_t dims) {
  return dims != 1 && call.dim(operand) == 1 && call.sizes(operand)[0] == 0;
}

// Returns true if tensors of these sizes can be joined along a dim.
bool can_join(std::vector<std::int64_t> one, const std::vector<std::int64_t>& other,
              std::size_t dim) {
  if (one.size() != other.size() || dim >= one.size()) return false;
  one[dim] = other[dim];
  return one == other;
}

// Schema: tensors, dim, out?
Rule cat(const RuleCall& call) {
  // The tensors of the list are the first operands.
  const auto count = static_cast<std::size_t>(
      std::ranges::count_if(call.operands(), [](const RuleOperand& one) { return !is_out(one); }));
  check(count > 0, "{}: expected at least one tensor, found none", call.operation());
  std::size_t model = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (call.dim(i) > call.dim(model)) model = i;
  std::int64_t dims = call.dim(model);
  std::int64_t dim = from_front(call.argument(1).toInt(), dims);
  const auto place = static_cast<std::size_t>(dim);
  // LibTorch checks this for out= tensors only in its kernel, which gets a rank's parts.
  for (std::size_t i = 0; i < count; ++i)
    check(is_skipped(call, i, dims) || can_join(call.sizes(i), call.sizes(model), place),
          "{}: expected tensors with equal sizes in all dims but dim {}, found [{}] and [{}]",
          call.operation(), dim, listed(call.sizes(model), ", "), listed(call.sizes(i), ", "));
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(model), {dim});
  Rule::Result result{call.sizes(model), labels};
  std::int64_t& length = result.sizes[place];
  length = 0;
  bool is_even = true;
  std::vector<int> all;
  for (std::size_t i = 0; i < count; ++i) {
    bool skipped = is_skipped(call, i, dims);
    rule.operands.push_back(skipped ? std::vector<int>(1, Rule::whole) : labels);
    if (!skipped) length += call.sizes(i)[place];
    is_even &= !skipped && call.sizes(i) == call.sizes(0);
    all.push_back(static_cast<int>(i));
  }
  for (std::size_t i = count; i < call.size(); ++i) {
    const bool has_sizes = call.sizes(i) == result.sizes;  // otherwise, the call is refused
    rule.operands.push_back(has_sizes ? labels
                                      : std::vector<int>(call.sizes(i).size(), Rule::whole));
  }
  rule.results = {result};
  rule.linear = {all};
  rule.moves = true;
  // If all tensors have equal sizes, a rank's concatenated pieces are its part of every block.
  if (is_even && count > 1) {
    const Placement each = Shard(static_cast<int>(dim));
    const Placement joined = Shard(static_cast<int>(dim), static_cast<int>(count));
    Placements operands(call.size(), joined);
    std::fill_n(operands.begin(), count, each);
    rule.more.push_back({std::move(operands), {joined}});
  }
  return rule;
}

// Returns a rule for splitting a dim into pieces of these lengths.
Rule pieces_of_dim(const RuleCall& call, std::int64_t dim,
                   const std::vector<std::int64_t>& lengths) {
  auto place = static_cast<std::size_t>(dim);
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0), {dim});
  rule.operands = {labels};
  for (std::int64_t length : lengths) {
    Rule::Result result{call.sizes(0), labels};
    result.sizes[place] = length;
    rule.results.push_back(std::move(result));
  }
  rule.linear = {{0}};
  rule.moves = true;
  bool is_even = std::ranges::all_of(lengths, [&](auto each) { return each == lengths[0]; });
  int count = static_cast<int>(lengths.size());
  if (!is_even || count < 2) return rule;
  Placement each = Shard(static_cast<int>(dim));
  rule.more.push_back({{Shard(static_cast<int>(dim), count)}, Placements(lengths.size(), each)});
  std::size_t arguments = call.arguments();
  rule.finish = [=](RulePlan& plan) {
    std::int64_t here = plan.local_results[0][place];
    if (plan.local_operands[0][place] == lengths[0] * count) return;
    plan.kernel = [=](Stack& stack) {
      at::Tensor self = torch::jit::last(stack, arguments)[0].toTensor();
      c10::List<at::Tensor> list;
      for (int i = 0; i < count; ++i) list.push_back(self.narrow(dim, i * here, here));
      give(stack, arguments, std::move(list));
    };
  };
  return rule;
}

// Schema: self, split_size, dim
Rule split(const RuleCall& call) {
  check(call.dim(0) > 0, "{}: expected a tensor of at least one dim, found one without dims",
        call.operation());
  std::int64_t dim = from_front(call.argument(2).toInt(), call.dim(0));
  std::int64_t left = call.sizes(0)[static_cast<std::size_t>(dim)];
  if (call.argument(1).isList()) return pieces_of_dim(call, dim, call.argument(1).toIntVector());
  std::int64_t size = call.argument(1).toInt();
  check(size > 0 || (size == 0 && left == 0), "{}: expected pieces of at least 1 element, found {}",
        call.operation(), size);
  std::vector<std::int64_t> lengths;
  do {
    lengths.push_back(size == 0 ? 0 : std::min(size, left));
    left -= lengths.back();
  } while (left > 0 && size > 0);
  return pieces_of_dim(call, dim, lengths);
}

}  // namespace

void add_joining_rules(RuleTable& table) {
  table["cat"] = cat;
  table["split"] = table["unsafe_split"] = split;
  table["split_with_sizes"] = table["unsafe_split_with_sizes"] = split;
}

}  // namespace lockstep::global
