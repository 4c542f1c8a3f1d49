#include "base/format.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <optional>

namespace lockstep::global {
namespace {

using torch::jit::Stack;

// Returns a rule for reducing `dims`. Sharding one of these gives Partial(op), or is not allowed
// without `op`.
Rule reduced(const RuleCall& call, const std::vector<std::int64_t>& dims, bool keep,
             std::optional<Op> op) {
  Rule rule;
  std::vector<int> labels;
  Rule::Result result;
  for (std::size_t dim = 0; dim < call.sizes(0).size(); ++dim) {
    bool is_reduced = has_dim(dims, dim);
    labels.push_back(is_reduced && !op ? Rule::whole : rule.add({.reduce = op}));
    if (is_reduced && !keep) continue;
    result.sizes.push_back(is_reduced ? 1 : call.sizes(0)[dim]);
    result.dims.push_back(is_reduced ? Rule::whole : labels.back());
  }
  rule.operands.push_back(std::move(labels));
  rule.results.assign(call.results(), result);
  return rule;
}

bool flag(const RuleCall& call, std::size_t argument) {
  return argument < call.arguments() && call.argument(argument).isBool() &&
         call.argument(argument).toBool();
}

// Returns true for (self, dims, keepdim, ...), false for (self) or (self, dtype), which reduce all
// dims.
bool has_dims_argument(const RuleCall& call) { return call.arguments() > 2; }

// Returns the last argument if it is a dtype, otherwise the dtype of the elements.
at::ScalarType asked_dtype(const RuleCall& call) {
  const c10::IValue& last = call.argument(call.arguments() - 1);
  return call.arguments() > 1 && last.isInt() ? static_cast<at::ScalarType>(last.toInt())
                                              : call.operands()[0].dtype;
}

bool is_narrowed(const RuleCall& call) {
  return c10::elementSize(asked_dtype(call)) < c10::elementSize(call.operands()[0].dtype);
}

// Returns a rule for reducing the dims in the arguments. With a narrower result dtype, these dims
// are not sharded, because each rank's sum would be rounded before the sums are added.
Rule of_dims(const RuleCall& call, std::optional<Op> op, bool is_empty_allowed = true) {
  bool has_dims = has_dims_argument(call);
  if (op && is_narrowed(call)) op.reset();
  auto dims = dims_in(has_dims ? call.argument(1) : c10::IValue(), call.dim(0));
  for (std::int64_t dim : dims)
    check(is_empty_allowed || call.dim(0) == 0 || call.sizes(0)[static_cast<std::size_t>(dim)] > 0,
          "{}: expected elements along the dims that it reduces, found sizes [{}]",
          call.operation(), listed(call.sizes(0), ", "));
  Rule rule = reduced(call, dims, has_dims && flag(call, 2), op);
  for (Rule::Label& label : rule.labels) label.empty = is_empty_allowed;
  return rule;
}

Rule sum(const RuleCall& call) {
  Rule rule = of_dims(call, Op::sum);
  rule.linear = {{0}};
  return rule;
}

// Schema: self, dims?
Rule count_nonzero(const RuleCall& call) {
  const c10::IValue dims = call.arguments() > 1 ? call.argument(1) : c10::IValue();
  return reduced(call, dims_in(dims, call.dim(0)), false, Op::sum);
}

// Schema: self, dim?, keepdim -> min, max. Sharding the dim gives two Partial results.
Rule aminmax(const RuleCall& call) {
  const auto dims = dims_in(call.argument(1), call.dim(0));
  Rule rule = reduced(call, dims, flag(call, 2), std::nullopt);
  for (std::int64_t dim : dims)
    if (call.dim(0) > 0)
      rule.more.push_back({{Shard(static_cast<int>(dim))},
                           {Partial(Op::min), Partial(Op::max)},
                           {call.sizes(0)[static_cast<std::size_t>(dim)]}});
  return rule;
}

bool has_partial(const RulePlan& plan) {
  return std::ranges::any_of(plan.results[0], [](Placement one) { return one.is_partial(); });
}

// Weights shards of different lengths by their number of elements: computes a sum and divides it by
// the number of elements in the whole tensor.
Rule mean(const RuleCall& call) {
  Rule rule = of_dims(call, Op::sum);
  rule.linear = {{0}};
  bool has_dims = has_dims_argument(call);
  auto dims = dims_in(has_dims ? call.argument(1) : c10::IValue(), call.dim(0));
  bool keep = has_dims && flag(call, 2);
  double count = 1;
  for (std::int64_t dim : dims)
    if (call.dim(0) > 0) count *= static_cast<double>(call.sizes(0)[static_cast<std::size_t>(dim)]);
  std::size_t arguments = call.arguments();
  rule.finish = [=](RulePlan& plan) {
    if (!has_partial(plan)) return;
    plan.kernel = [=](Stack& stack) {
      auto values = torch::jit::last(stack, arguments);
      const at::Tensor self = values[0].toTensor();
      const c10::IValue& dtype = values.back();
      auto type = dtype.isInt() ? static_cast<at::ScalarType>(dtype.toInt()) : self.scalar_type();
      // The sum may overflow 16 bits even if the mean does not.
      give(stack, arguments,
           at::sum(self, dims, keep, at::toOpMathType(type)).div_(count).to(type));
    };
  };
  return rule;
}

// Combines the norms of shards by a collective.
struct Norm {
  double order = 2;
  std::vector<std::int64_t> dims;
  bool keep = false;
  at::ScalarType dtype = at::kFloat;
  std::vector<int> axes;  // axes that shard one of the dims
  std::function<void(int, const at::Tensor&, Op)> all_reduce;

  // Powers of norms are summed in float64, because the square of a norm may overflow the norm's
  // dtype.
  [[nodiscard]] at::Tensor of(const at::Tensor& local) const {
    bool is_extreme = std::isinf(order);
    bool is_power = !is_extreme && order != 0 && order != 1;
    at::Tensor result;
    if (local.numel() == 0) {  // LibTorch refuses negative orders for an empty tensor
      result = at::sum(local, dims, keep, at::kDouble);
      if (is_extreme && order < 0) result.fill_(std::numeric_limits<double>::infinity());
    } else {
      result =
          at::linalg_vector_norm(local, order, dims, keep, at::toOpMathType(dtype)).to(at::kDouble);
      if (is_power) result.pow_(order);
    }
    result = result.contiguous();
    Op op = !is_extreme ? Op::sum : order > 0 ? Op::max : Op::min;
    for (int axis : axes) all_reduce(axis, result, op);
    if (is_power) result.pow_(1 / order);
    return result.to(at::toRealValueType(dtype));
  }
};

// aten::norm and aten::linalg_vector_norm: self, order, dims, keepdim, dtype
Rule norm(const RuleCall& call) {
  bool has_dims = call.arguments() > 2 && call.argument(2).isList();
  Norm norm{.dims = dims_in(has_dims ? call.argument(2) : c10::IValue(), call.dim(0)),
            .keep = flag(call, 3),
            .dtype = call.operands()[0].dtype};
  if (call.argument(1).isDouble()) norm.order = call.argument(1).toDouble();
  if (call.argument(1).isInt()) norm.order = static_cast<double>(call.argument(1).toInt());
  Rule rule = reduced(call, norm.dims, norm.keep, std::nullopt);
  const c10::IValue& last = call.argument(call.arguments() - 1);
  if (call.arguments() > 2 && last.isInt()) norm.dtype = static_cast<at::ScalarType>(last.toInt());
  for (Placement one : call.operands()[0].placements)
    if (one.is_shard() && has_dim(norm.dims, static_cast<std::size_t>(one.dim())))
      rule.more.push_back({{one}, {Replicate()}});
  std::size_t arguments = call.arguments();
  rule.finish = [norm, arguments](RulePlan& plan) mutable {
    for (int axis = 0; axis < static_cast<int>(plan.operands[0].size()); ++axis) {
      Placement one = plan.operands[0][static_cast<std::size_t>(axis)];
      if (one.is_shard() && has_dim(norm.dims, static_cast<std::size_t>(one.dim())))
        norm.axes.push_back(axis);
    }
    if (norm.axes.empty()) return;
    norm.all_reduce = plan.all_reduce;
    plan.kernel = [norm, arguments](Stack& stack) {
      give(stack, arguments, norm.of(torch::jit::last(stack, arguments)[0].toTensor()));
    };
  };
  return rule;
}

// Returns the rule of an operation whose argument `place` is a dim: elements of the dim are mixed,
// and sizes do not change.
RuleFunction along(std::size_t place) {
  return [place](const RuleCall& call) {
    return same_sizes(call, dims_in(call.argument(place), call.dim(0)));
  };
}

// Schema: self, k, dim. The dim has `k` elements afterwards.
Rule topk(const RuleCall& call) {
  std::int64_t dim = from_front(call.argument(2).toInt(), call.dim(0));
  Rule rule = same_sizes(call, {dim});
  for (Rule::Result& result : rule.results)
    if (!result.sizes.empty())
      result.sizes[static_cast<std::size_t>(dim)] = call.argument(1).toInt();
  return rule;
}

// Schema: self, dims?, ..., keepdim (last argument). The reduced dims are not sharded.
Rule of_whole_dims(const RuleCall& call) {
  return reduced(call, dims_in(call.argument(1), call.dim(0)), flag(call, call.arguments() - 1),
                 std::nullopt);
}

// Schema: self, other -> bool. Ranks compare their parts and combine the results.
Rule equal(const RuleCall& call) {
  Rule rule = all_whole(call);
  bool is_alike = call.size() == 2 && call.sizes(0) == call.sizes(1);
  if (!is_alike) return rule;
  for (std::size_t dim = 0; dim < call.sizes(0).size(); ++dim)
    rule.operands[0][dim] = rule.operands[1][dim] = rule.add();
  rule.finish = [](RulePlan& plan) {
    std::vector<int> axes;
    for (std::size_t axis = 0; axis < plan.operands[0].size(); ++axis)
      if (plan.operands[0][axis].is_shard()) axes.push_back(static_cast<int>(axis));
    if (axes.empty()) return;
    plan.kernel = [=, run = plan.operation, all_reduce = plan.all_reduce](Stack& stack) {
      run(stack);
      // Even a tensor and itself: they differ on the ranks that have a NaN.
      at::Tensor all = at::full({1}, stack.back().toBool() ? 1 : 0, at::kInt);
      for (int axis : axes) all_reduce(axis, all, Op::min);
      stack.back() = all.item<int>() == 1;
    };
  };
  return rule;
}

// Schema: self; or self, dim, keepdim; or self, dims?, keepdim. An empty list reduces nothing.
Rule any_or_all(const RuleCall& call, Op op) {
  const bool reduces = !has_dims_argument(call) || !is_empty_list(call.argument(1));
  return reduces ? of_dims(call, op) : pointwise()(call);
}

// aten::prod: self, dtype; or self, dim, keepdim, dtype. Ranks do not multiply complex numbers.
Rule prod(const RuleCall& call) {
  const bool is_complex = at::isComplexType(asked_dtype(call));
  return of_dims(call, is_complex ? std::nullopt : std::optional(Op::product));
}

}  // namespace

void add_reduction_rules(RuleTable& table) {
  table["sum"] = sum;
  table["mean"] = mean;
  table["norm"] = table["linalg_vector_norm"] = norm;
  auto by = [](Op op, bool empty) {
    return [op, empty](const RuleCall& call) { return of_dims(call, op, empty); };
  };
  table["amax"] = by(Op::max, false);
  table["amin"] = by(Op::min, false);
  table["prod"] = prod;
  table["any"] = [](const RuleCall& call) { return any_or_all(call, Op::bor); };
  table["all"] = [](const RuleCall& call) { return any_or_all(call, Op::band); };
  auto extreme = [](Op op) {
    return [op](const RuleCall& call) {
      bool is_of_all = call.arguments() == 1;
      return of_dims(call, is_of_all ? std::optional(op) : std::nullopt, false);
    };
  };
  table["max"] = extreme(Op::max);
  table["min"] = extreme(Op::min);
  table["logsumexp"] = [](const RuleCall& call) { return of_dims(call, std::nullopt); };
  table["argmax"] =
      table["argmin"] = [](const RuleCall& call) { return of_dims(call, std::nullopt, false); };
  table["var"] = table["std"] = table["var_mean"] = table["std_mean"] = of_whole_dims;
  table["nansum"] = by(Op::sum, true);
  table["count_nonzero"] = count_nonzero;
  table["aminmax"] = aminmax;
  table["median"] = table["nanmedian"] = table["mode"] = [](const RuleCall& call) {
    // Over all dims, the median of no elements is NaN.
    const bool is_of_all = call.arguments() == 1;
    return of_dims(call, std::nullopt, is_of_all);
  };
  table["kthvalue"] = [](const RuleCall& call) {
    return reduced(call, dims_in(call.argument(2), call.dim(0)), flag(call, 3), std::nullopt);
  };
  table["trace"] = [](const RuleCall& call) {
    Rule rule = reduced(call, {0, 1}, false, std::nullopt);
    rule.linear = {{0}};
    return rule;
  };
  for (const char* name : {"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "flip"})
    table[name] = along(1);
  table["cumprod_backward"] = along(2);  // operands have the sizes of the result
  table["sort"] = [](const RuleCall& call) {
    std::size_t place = call.argument(1).isInt() ? 1 : 2;
    return same_sizes(call, dims_in(call.argument(place), call.dim(0)));
  };
  table["topk"] = topk;
  table["tril"] = table["triu"] = table["tril_"] = table["triu_"] = [](const RuleCall& call) {
    return same_sizes(call, {call.dim(0) - 2, call.dim(0) - 1});
  };
  table["equal"] = equal;
  // An operation that reads a value needs the whole tensor.
  table["_local_scalar_dense"] = all_whole;
}

}  // namespace lockstep::global
