#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <lockstep/layout/tensor_slice.h>

#include <ATen/ops/reshape.h>

#include <cstdlib>
#include <utility>

namespace lockstep::global {
namespace {

using torch::jit::Stack;
using Sizes = std::vector<std::int64_t>;

Rule same(const RuleCall& call) {
  Rule rule = same_sizes(call, {});
  rule.linear = {{0}};
  rule.moves = true;
  return rule;
}

Rule permuted(const RuleCall& call, const std::vector<int>& from) {
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0));
  Sizes sizes;
  for (int dim : from) sizes.push_back(call.sizes(0)[static_cast<std::size_t>(dim)]);
  return moved(call, labels, from, sizes, std::move(rule));
}

Rule transpose(const RuleCall& call) {
  std::vector<int> order = in_order(call.dim(0));
  bool is_t = call.arguments() == 1;
  std::int64_t a = is_t ? 0 : from_front(call.argument(1).toInt(), call.dim(0));
  std::int64_t b = is_t ? 1 : from_front(call.argument(2).toInt(), call.dim(0));
  if (order.size() > 1)
    std::swap(order[static_cast<std::size_t>(a)], order[static_cast<std::size_t>(b)]);
  return permuted(call, order);
}

Rule permute(const RuleCall& call) {
  std::vector<int> order;
  for (std::int64_t dim : call.argument(1).toIntVector())
    order.push_back(static_cast<int>(from_front(dim, call.dim(0))));
  return permuted(call, order);
}

Rule unsqueeze(const RuleCall& call) {
  std::vector<int> order = in_order(call.dim(0));
  Sizes sizes = call.sizes(0);
  std::int64_t dim = from_front(call.argument(1).toInt(), call.dim(0) + 1);
  order.insert(order.begin() + dim, -1);
  sizes.insert(sizes.begin() + dim, 1);
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0));
  return moved(call, labels, order, sizes, std::move(rule));
}

// Gives the local result this rank's part of the whole sizes. The result is a view if the memory
// layout allows it.
void reshape_locally(Rule& rule, std::size_t arguments) {
  rule.finish = [arguments](RulePlan& plan) {
    plan.kernel = [arguments, sizes = plan.local_results[0]](Stack& stack) {
      at::Tensor self = torch::jit::last(stack, arguments)[0].toTensor();
      give(stack, arguments, at::reshape(self, sizes));
    };
  };
}

// Removes dims of one element: all of them, or those in `dims`. An empty list removes none.
Rule squeeze(const RuleCall& call) {
  Sizes dims;
  if (call.arguments() == 1)
    dims = dims_in({}, call.dim(0));
  else if (!is_empty_list(call.argument(1)))
    dims = dims_in(call.argument(1), call.dim(0));
  Rule rule;
  std::vector<int> labels, from;
  Sizes sizes;
  for (std::size_t dim = 0; dim < call.sizes(0).size(); ++dim) {
    bool goes = call.sizes(0)[dim] == 1 && has_dim(dims, dim);
    labels.push_back(goes ? Rule::whole : rule.add());
    if (goes) continue;
    from.push_back(static_cast<int>(dim));
    sizes.push_back(call.sizes(0)[dim]);
  }
  Rule made = moved(call, labels, from, sizes, std::move(rule));
  reshape_locally(made, call.arguments());
  return made;
}

// Schema: self, size, implicit
Rule expand(const RuleCall& call) {
  Sizes sizes = call.argument(1).toIntVector();
  std::size_t first = sizes.size() - call.sizes(0).size();
  Rule rule;
  std::vector<int> labels, from(first, -1);
  for (std::size_t dim = 0; dim < call.sizes(0).size(); ++dim) {
    std::int64_t length = call.sizes(0)[dim];
    std::int64_t& wanted = sizes[first + dim];
    if (wanted < 0) wanted = length;
    labels.push_back(wanted == length ? rule.add() : Rule::whole);
    from.push_back(static_cast<int>(dim));
  }
  Rule made = moved(call, labels, from, sizes, std::move(rule));
  replace_sizes(made);
  return made;
}

Rule select(const RuleCall& call) {
  std::int64_t dim = from_front(call.argument(1).toInt(), call.dim(0));
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0), {dim});
  std::vector<int> order = in_order(call.dim(0));
  Sizes sizes = call.sizes(0);
  order.erase(order.begin() + dim);
  sizes.erase(sizes.begin() + dim);
  return moved(call, labels, order, sizes, std::move(rule));
}

// Returns the begin or end of a slice of `length` elements; a negative value counts from the end,
// as in Python.
std::int64_t place_in(const c10::IValue& value, std::int64_t otherwise, std::int64_t length) {
  std::int64_t place = value.isInt() ? value.toInt() : otherwise;
  if (place < 0) place += length;
  return std::clamp<std::int64_t>(place, 0, length);
}

// Schema: self, dim, start, end, step
Rule slice(const RuleCall& call) {
  std::int64_t dim = from_front(call.argument(1).toInt(), call.dim(0));
  Sizes sizes = call.sizes(0);
  std::int64_t& length = sizes[static_cast<std::size_t>(dim)];
  std::int64_t begin = place_in(call.argument(2), 0, length);
  std::int64_t end = std::max(begin, place_in(call.argument(3), length, length));
  std::int64_t step = call.argument(4).toInt();
  check(step > 0, "{}: expected a step above 0, found {}", call.operation(), step);
  bool is_all = begin == 0 && end == length && step == 1;
  length = (end - begin + step - 1) / step;
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0), is_all ? Sizes{} : Sizes{dim});
  return moved(call, labels, in_order(call.dim(0)), sizes, std::move(rule));
}

// Schema: grad, input_sizes, dim, ... The gradient of a slice, or of one element of a dim.
Rule slice_backward(const RuleCall& call) {
  Sizes sizes = call.argument(1).toIntVector();
  auto dims = static_cast<std::int64_t>(sizes.size());
  std::int64_t dim = from_front(call.argument(2).toInt(), dims);
  bool has_dim_too = call.dim(0) == dims;
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0), has_dim_too ? Sizes{dim} : Sizes{});
  std::vector<int> from = in_order(call.dim(0));
  if (has_dim_too) {
    from[static_cast<std::size_t>(dim)] = -1;
  } else {
    from.insert(from.begin() + dim, -1);
  }
  Rule made = moved(call, labels, from, sizes, std::move(rule));
  made.moves = false;  // zeros are not neutral for other reductions
  replace_sizes(made);
  return made;
}

// Returns the requested sizes of a view, with -1 resolved.
Sizes wanted_sizes(const RuleCall& call) {
  Sizes sizes = call.argument(1).toIntVector();
  std::int64_t known = 1;
  for (std::int64_t size : sizes) known *= size < 0 ? 1 : size;
  std::int64_t numel = layout::numel_of(call.sizes(0));
  for (std::int64_t& size : sizes)
    if (size < 0) size = known == 0 ? 0 : numel / known;
  return sizes;
}

// Dims of the operand and of the result that contain the same elements: [a, b) and [c, d).
struct ViewGroup {
  std::size_t a, b, c, d;
};

std::vector<ViewGroup> groups_of(const Sizes& from, const Sizes& to) {
  std::vector<ViewGroup> groups;
  std::size_t i = 0, j = 0;
  while (i < from.size() && j < to.size()) {
    ViewGroup group{i, i + 1, j, j + 1};
    std::int64_t left = from[i++], right = to[j++];
    while (left != right && (left < right ? i < from.size() : j < to.size()))
      left < right ? left *= from[i++] : right *= to[j++];
    group.b = i;
    group.d = j;
    groups.push_back(group);
  }
  return groups;
}

std::size_t first_of_many(const Sizes& sizes, std::size_t begin, std::size_t end) {
  while (begin + 1 < end && sizes[begin] == 1) ++begin;
  return begin;
}

// Adds choices for views between one dim of several equal blocks and two dims, the first of which
// counts the blocks.
void add_blocks(const RuleCall& call, Rule& rule, const Sizes& to, const ViewGroup& group) {
  const Sizes& from = call.sizes(0);
  // A block of several dims is split along its first dim, so all ranks must have equal parts of
  // that dim.
  const bool is_one_dim = std::max(group.b - group.a, group.d - group.c) == 2;
  auto add = [&](Placement whole, Placement block, std::int64_t length, bool splits) {
    RuleChoice choice{{splits ? whole : block}, {splits ? block : whole}};
    if (!is_one_dim) choice.lengths = {whole.is_zigzag() && length % 2 == 0 ? length / 2 : length};
    if (!is_one_dim && whole.is_zigzag() && length % 2 != 0) return;
    rule.more.push_back(std::move(choice));
  };
  for (Placement now : call.operands()[0].placements) {
    if (!now.is_shard()) continue;
    auto dim = static_cast<std::size_t>(now.dim());
    if (dim < group.a || dim >= group.b) continue;
    bool splits = group.b - group.a == 1 && group.d - group.c > 1 && now.parts() > 1 &&
                  to[group.c] == now.parts();
    if (splits)
      add(now, Shard(static_cast<int>(group.c) + 1).zigzag(now.is_zigzag()), to[group.c + 1], true);
    bool joins = group.d - group.c == 1 && group.b - group.a > 1 && dim == group.a + 1 &&
                 now.parts() == 1 && from[group.a] > 1;
    if (joins)
      add(Shard(static_cast<int>(group.c), static_cast<int>(from[group.a])).zigzag(now.is_zigzag()),
          now, from[dim], false);
  }
}

Rule view(const RuleCall& call) {
  check(call.argument(1).isIntList(),
        "{}: a global tensor cannot be viewed with another dtype; convert its values by to()",
        call.operation());
  Sizes to = wanted_sizes(call);
  const Sizes& from = call.sizes(0);
  Rule rule;
  std::vector<int> labels(from.size(), Rule::whole);
  Rule::Result result{to, std::vector<int>(to.size(), Rule::whole)};
  for (const ViewGroup& group : groups_of(from, to)) {
    std::size_t i = first_of_many(from, group.a, group.b);
    std::size_t j = first_of_many(to, group.c, group.d);
    if (from[i] == 0 || to[j] == 0) continue;
    bool is_same = from[i] == to[j];
    Rule::Label label;
    if (!is_same) label.lengths = {from[i], to[j]};
    labels[i] = result.dims[j] = rule.add(label);
    add_blocks(call, rule, to, group);
  }
  rule.operands = {labels};
  rule.results = {result};
  rule.linear = {{0}};
  rule.moves = true;
  reshape_locally(rule, call.arguments());
  return rule;
}

// Repeated dims of the result are not sharded.
Rule repeat(const RuleCall& call) {
  Sizes sizes = call.argument(1).toIntVector();
  check(sizes.size() >= call.sizes(0).size(),
        "{}: expected at least as many repeats as dims, {}, found {}", call.operation(),
        call.dim(0), sizes.size());
  std::size_t first = sizes.size() - call.sizes(0).size();
  Rule rule;
  std::vector<int> labels, from(first, -1);
  for (std::size_t dim = 0; dim < call.sizes(0).size(); ++dim) {
    bool is_once = sizes[first + dim] == 1;
    sizes[first + dim] *= call.sizes(0)[dim];
    labels.push_back(is_once ? rule.add() : Rule::whole);
    from.push_back(static_cast<int>(dim));
  }
  return moved(call, labels, from, sizes, std::move(rule));
}

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
  replace_sizes(made);
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
  replace_sizes(made);
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

void add_view_rules(RuleTable& table) {
  for (const char* name : {"alias", "detach", "lift_fresh", "contiguous"}) table[name] = same;
  table["t"] = table["transpose"] = transpose;
  table["permute"] = permute;
  table["unsqueeze"] = unsqueeze;
  table["squeeze"] = squeeze;
  table["expand"] = expand;
  table["select"] = select;
  table["slice"] = slice;
  table["slice_backward"] = table["select_backward"] = slice_backward;
  table["view"] = table["_unsafe_view"] = table["_reshape_alias"] = view;
  table["repeat"] = repeat;
  table["roll"] = [](const RuleCall& call) {
    return same_sizes(call, dims_in(call.argument(2), call.dim(0)));
  };
  table["diagonal"] = table["diagonal_copy"] = diagonal;
  table["diagonal_backward"] = diagonal_backward;
  table["diag_embed"] = diag_embed;
  table["unfold"] = unfold;
  table["unfold_backward"] = unfold_backward;
  table["constant_pad_nd"] = constant_pad;
}

}  // namespace lockstep::global
