// Diagonals, windows of a dim, and padding.
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <cstdlib>

namespace lockstep::global {
namespace {

using Sizes = std::vector<std::int64_t>;

// Two dims of a matrix, counted from the front, and the length of its diagonal.
struct Diagonal {
  Diagonal(const RuleCall& call, const Sizes& sizes, std::size_t offset)
      : first(from_front(call.argument(offset + 1).toInt(), std::ssize(sizes))),
        second(from_front(call.argument(offset + 2).toInt(), std::ssize(sizes))) {
    check(first != second, "{}: expected two dims, found dim {} twice", call.operation(), first);
    std::int64_t by = call.argument(offset).toInt();
    std::int64_t rows = sizes.at(static_cast<std::size_t>(first)) + std::min<std::int64_t>(by, 0);
    std::int64_t columns =
        sizes.at(static_cast<std::size_t>(second)) - std::max<std::int64_t>(by, 0);
    length = std::max<std::int64_t>(std::min(rows, columns), 0);
  }
  // Returns the other dims, in order.
  [[nodiscard]] std::vector<int> others(std::int64_t dims) const {
    std::vector<int> order = in_order(dims);
    std::erase_if(order, [&](int dim) { return dim == first || dim == second; });
    return order;
  }

  std::int64_t first, second, length = 0;
};

// Schema: self, offset, dim1, dim2. The diagonal is a new last dim.
Rule diagonal(const RuleCall& call) {
  const Diagonal made(call, call.sizes(0), 1);
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0), {made.first, made.second});
  std::vector<int> from = made.others(call.dim(0));
  Sizes sizes;
  for (int dim : from) sizes.push_back(call.sizes(0)[static_cast<std::size_t>(dim)]);
  from.push_back(-1);
  sizes.push_back(made.length);
  return moved(call, labels, from, sizes, std::move(rule));
}

// The last dim of the operand becomes the diagonal of two new dims of the result.
Rule onto_diagonal(const RuleCall& call, const Sizes& sizes, const Diagonal& made) {
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0), {call.dim(0) - 1});
  std::vector<int> from(sizes.size(), -1);
  int next = 0;
  for (int dim : made.others(std::ssize(sizes))) from[static_cast<std::size_t>(dim)] = next++;
  Rule result = moved(call, labels, from, sizes, std::move(rule));
  result.moves = false;  // zeros are not neutral for other reductions
  return result;
}

// Schema: grad, input_sizes, offset, dim1, dim2
Rule diagonal_backward(const RuleCall& call) {
  const Sizes sizes = call.argument(1).toIntVector();
  Rule made = onto_diagonal(call, sizes, Diagonal(call, sizes, 2));
  made.finish = [](RulePlan& plan) {
    plan.replaced.emplace_back(1, c10::IValue(plan.local_results[0]));
  };
  return made;
}

// Schema: self, offset, dim1, dim2
Rule diag_embed(const RuleCall& call) {
  check(call.dim(0) > 0, "{}: expected a tensor with at least one dim", call.operation());
  const std::int64_t side = call.sizes(0).back() + std::abs(call.argument(1).toInt());
  const Diagonal made(call, Sizes(call.sizes(0).size() + 1, side), 1);
  Sizes sizes(call.sizes(0).size() + 1, side);
  std::size_t next = 0;
  for (int dim : made.others(std::ssize(sizes)))
    sizes[static_cast<std::size_t>(dim)] = call.sizes(0)[next++];
  return onto_diagonal(call, sizes, made);
}

// Schema: self, dim, size, step. The elements of each window of the dim are a new last dim.
Rule unfold(const RuleCall& call) {
  const std::int64_t dim = from_front(call.argument(1).toInt(), call.dim(0));
  const std::int64_t size = call.argument(2).toInt(), step = call.argument(3).toInt();
  Sizes sizes = call.sizes(0);
  const std::int64_t length = sizes.empty() ? 1 : sizes[static_cast<std::size_t>(dim)];
  check(size >= 0 && size <= length && step > 0,
        "{}: expected windows of at most {} elements and a step above 0, found {} and {}",
        call.operation(), length, size, step);
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0), {dim});
  std::vector<int> from = in_order(call.dim(0));
  if (!sizes.empty()) sizes[static_cast<std::size_t>(dim)] = (length - size) / step + 1;
  from.push_back(-1);
  sizes.push_back(size);
  return moved(call, labels, from, sizes, std::move(rule));
}

// Schema: grad, input_sizes, dim, size, step
Rule unfold_backward(const RuleCall& call) {
  const Sizes sizes = call.argument(1).toIntVector();
  const std::int64_t dim = from_front(call.argument(2).toInt(), std::ssize(sizes));
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0), {dim, call.dim(0) - 1});
  Rule made = moved(call, labels, in_order(std::ssize(sizes)), sizes, std::move(rule));
  made.moves = false;
  made.finish = [](RulePlan& plan) {
    plan.replaced.emplace_back(1, c10::IValue(plan.local_results[0]));
  };
  return made;
}

// Schema: self, pad, value. `pad` has the number of elements before and after each dim, from the
// last dim on.
Rule constant_pad(const RuleCall& call) {
  const Sizes pad = call.argument(1).toIntVector();
  Sizes sizes = call.sizes(0), padded;
  check(pad.size() % 2 == 0 && pad.size() / 2 <= sizes.size(),
        "{}: expected two numbers for each of at most {} dims, found {}", call.operation(),
        call.dim(0), pad.size());
  for (std::size_t i = 0; i < pad.size() / 2; ++i) {
    const std::size_t dim = sizes.size() - 1 - i;
    if (pad[2 * i] == 0 && pad[2 * i + 1] == 0) continue;
    sizes[dim] += pad[2 * i] + pad[2 * i + 1];
    check(sizes[dim] >= 0, "{}: expected a result with sizes of at least 0, found {} in dim {}",
          call.operation(), sizes[dim], dim);
    padded.push_back(static_cast<std::int64_t>(dim));
  }
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0), padded);
  rule = moved(call, labels, in_order(call.dim(0)), sizes, std::move(rule));
  rule.linear.clear();  // each rank would add its own value
  rule.moves = false;
  return rule;
}

}  // namespace

void add_diagonal_rules(RuleTable& table) {
  table["diagonal"] = table["diagonal_copy"] = diagonal;
  table["diagonal_backward"] = diagonal_backward;
  table["diag_embed"] = diag_embed;
  table["unfold"] = unfold;
  table["unfold_backward"] = unfold_backward;
  table["constant_pad_nd"] = constant_pad;
}

}  // namespace lockstep::global
