#include <lockstep/comm/functional.h>

#include "base/check.h"
#include "comm/api/functional/maps.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

// The reductions that are not linear, with their gradients: min, max and product.
namespace lockstep::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Reduction : torch::CustomClassHolder {
  Reduction(Site site, Op op) : site(std::move(site)), op(op) {}
  Site site;
  Op op;
};

using ReductionPointer = c10::intrusive_ptr<Reduction>;

constexpr const char* reduction_key = "reduction";

at::Tensor reduce_forward(AutogradContext* context, const at::Tensor& input,
                          const ReductionPointer& reduction) {
  context->saved_data[reduction_key] = c10::IValue::make_capsule(reduction);
  Passing passing(reduction->site, true);
  return combine(reduction->op)(passing, input);
}

Site site_of_backward(AutogradContext* context) {
  auto holder = context->saved_data.at(reduction_key).toCapsule();
  return static_cast<const Reduction&>(*holder).site.of_backward();
}

at::Tensor sum_over_ranks(const at::Tensor& tensor, const Site& site) {
  return perform(tensor, site, combine(Op::sum), combine(Op::sum));
}

struct Extreme : torch::autograd::Function<Extreme> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const ReductionPointer& reduction) {
    auto output = reduce_forward(context, input, reduction);
    context->save_for_backward({input, output});
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto saved = context->get_saved_variables();
    auto site = site_of_backward(context);
    at::Tensor share;
    {
      at::NoGradGuard no_grad;
      auto mine = saved[0].eq(saved[1]).to(gradients[0].scalar_type());
      share = mine / sum_over_ranks(mine, site);
    }
    return {sum_over_ranks(gradients[0], site) * share, at::Tensor()};
  }
};

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const ReductionPointer& reduction) {
    context->save_for_backward({input});
    return reduce_forward(context, input, reduction);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto input = context->get_saved_variables()[0];
    auto site = site_of_backward(context);
    auto all = perform(input.unsqueeze(0), site, join(0, {}), cut(0, {}, Op::sum));
    int rank = site.group.rank(), size = site.group.size();
    auto others = at::cat({all.narrow(0, 0, rank), all.narrow(0, rank + 1, size - rank - 1)});
    return {sum_over_ranks(gradients[0], site) * others.prod(0), at::Tensor()};
  }
};

template <class Function>
at::Tensor apply_reduction(const at::Tensor& input, const Site& site, Op op) {
  if (!Site::records(input)) return perform(input, site, combine(op), combine(op));
  return Function::apply(input, c10::make_intrusive<Reduction>(site, op));
}

// Op::min or Op::max. Ranks that share the extreme value share its gradient equally, as at::amax
// does.
at::Tensor extreme(const at::Tensor& input, const Site& site, Op op) {
  return apply_reduction<Extreme>(input, site, op);
}

// Op::product. The gradient is computed as a product over the other ranks, so it is correct for
// factors of zero.
at::Tensor product(const at::Tensor& input, const Site& site) {
  return apply_reduction<Product>(input, site, Op::product);
}

}  // namespace
}  // namespace lockstep::functional

namespace lockstep {
namespace {

using functional::Site;
using functional::Sizes;
using SizesView = std::span<const std::int64_t>;

void check_defined(const at::Tensor& input, std::string_view name) {
  check(input.defined(), "{}: the input is undefined", name);
}

// Returns the dim counted from the front.
std::int64_t place_of(const at::Tensor& input, std::int64_t dim, std::string_view name) {
  check_defined(input, name);
  check(input.dim() > 0, "{}: expected a tensor with dims, found a scalar; unsqueeze(0) makes one",
        name);
  check(dim >= -input.dim() && dim < input.dim(), "{}: expected a dim from {} to {}, found {}",
        name, -input.dim(), input.dim() - 1, dim);
  return dim < 0 ? dim + input.dim() : dim;
}

void check_divisible(const at::Tensor& input, std::int64_t dim, const Group& group,
                     std::string_view name) {
  check(input.size(dim) % group.size() == 0,
        "{}: expected dim {} to be divisible by the number of ranks, {}, found size {}; pass sizes",
        name, dim, group.size(), input.size(dim));
}

Sizes checked(SizesView sizes, const Group& group, std::string_view name) {
  check(std::ssize(sizes) == group.size(), "{}: expected as many sizes as ranks, {}, found {}",
        name, group.size(), sizes.size());
  auto least = std::ranges::min(sizes);
  check(least >= 0, "{}: expected sizes that are not negative, found {}", name, least);
  return {sizes.begin(), sizes.end()};
}

void check_length(const at::Tensor& input, std::int64_t dim, std::int64_t expected,
                  std::string_view name) {
  check(input.size(dim) == expected, "{}: expected size {} in dim {}, found {}", name, expected,
        dim, input.size(dim));
}

std::int64_t sum_of(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

void check_root(int root, const Group& group, std::string_view name) {
  check(root >= 0 && root < group.size(), "{}: expected a root from 0 to {}, found {}", name,
        group.size() - 1, root);
}

void check_linear(Op op) {
  check(op == Op::sum || op == Op::average,
        "reduce_scatter: expected sum or average, found {}; all_reduce and a slice of its result "
        "do the others",
        name_of(op));
}

struct Tied : torch::autograd::Function<Tied> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& value,
                            at::TensorList results) {
    context->saved_data["results"] = static_cast<std::int64_t>(results.size());
    context->set_materialize_grads(false);
    return value.view_as(value);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto results = static_cast<std::size_t>(context->saved_data.at("results").toInt());
    torch::autograd::variable_list all(1 + results);
    all[0] = gradients[0];
    return all;
  }
};

}  // namespace

at::Tensor all_reduce(const at::Tensor& input, Group group, Op op, CallOptions options,
                      Group::Where where) {
  check_defined(input, "all_reduce");
  const Site site("all_reduce", std::move(group), options, where);
  switch (op) {
    case Op::min:
    case Op::max:
      return functional::extreme(input, site, op);
    case Op::product:
      return functional::product(input, site);
    default:
      return functional::perform(input, site, functional::combine(op), functional::combine(op));
  }
}

at::Tensor reduce(const at::Tensor& input, Group group, int root, CallOptions options,
                  Group::Where where) {
  check_defined(input, "reduce");
  check_root(root, group, "reduce");
  return functional::perform(input, {"reduce", std::move(group), options, where},
                             functional::sum_at(root), functional::send_from(root));
}

at::Tensor broadcast(const at::Tensor& input, Group group, int root, CallOptions options,
                     Group::Where where) {
  check_defined(input, "broadcast");
  check_root(root, group, "broadcast");
  return functional::perform(input, {"broadcast", std::move(group), options, where},
                             functional::send_from(root), functional::sum_at(root));
}

at::Tensor all_gather(const at::Tensor& input, Group group, std::int64_t dim, CallOptions options,
                      Group::Where where) {
  auto place = place_of(input, dim, "all_gather");
  return functional::perform(input, {"all_gather", std::move(group), options, where},
                             functional::join(place, {}), functional::cut(place, {}, Op::sum));
}

at::Tensor all_gather(const at::Tensor& input, Group group, SizesView sizes, std::int64_t dim,
                      CallOptions options, Group::Where where) {
  auto place = place_of(input, dim, "all_gather");
  auto all = checked(sizes, group, "all_gather");
  check_length(input, place, all.at(group.rank()), "all_gather");
  return functional::perform(input, {"all_gather", std::move(group), options, where},
                             functional::join(place, all), functional::cut(place, all, Op::sum));
}

at::Tensor reduce_scatter(const at::Tensor& input, Group group, std::int64_t dim, Op op,
                          CallOptions options, Group::Where where) {
  auto place = place_of(input, dim, "reduce_scatter");
  check_linear(op);
  check_divisible(input, place, group, "reduce_scatter");
  return functional::perform(input, {"reduce_scatter", std::move(group), options, where},
                             functional::cut(place, {}, op),
                             functional::join(place, {}, op == Op::average));
}

at::Tensor reduce_scatter(const at::Tensor& input, Group group, SizesView sizes, std::int64_t dim,
                          Op op, CallOptions options, Group::Where where) {
  auto place = place_of(input, dim, "reduce_scatter");
  check_linear(op);
  auto all = checked(sizes, group, "reduce_scatter");
  check_length(input, place, sum_of(all), "reduce_scatter");
  return functional::perform(input, {"reduce_scatter", std::move(group), options, where},
                             functional::cut(place, all, op),
                             functional::join(place, all, op == Op::average));
}

at::Tensor all_to_all(const at::Tensor& input, Group group, std::int64_t split_dim,
                      std::int64_t join_dim, CallOptions options, Group::Where where) {
  auto split = place_of(input, split_dim, "all_to_all");
  auto join = place_of(input, join_dim, "all_to_all");
  check_divisible(input, split, group, "all_to_all");
  return functional::perform(input, {"all_to_all", std::move(group), options, where},
                             functional::exchange(split, join), functional::exchange(join, split));
}

at::Tensor all_to_all(const at::Tensor& input, Group group, SizesView output_sizes,
                      SizesView input_sizes, std::int64_t dim, CallOptions options,
                      Group::Where where) {
  auto place = place_of(input, dim, "all_to_all");
  auto out = checked(output_sizes, group, "all_to_all");
  auto in = checked(input_sizes, group, "all_to_all");
  check_length(input, place, sum_of(in), "all_to_all");
  return functional::perform(input, {"all_to_all", std::move(group), options, where},
                             functional::exchange(place, out, in),
                             functional::exchange(place, in, out));
}

at::Tensor copy_to(const at::Tensor& input, Group group, CallOptions options, Group::Where where) {
  check_defined(input, "copy_to");
  return functional::perform(input, {"copy_to", std::move(group), options, where},
                             functional::identity(), functional::combine(Op::sum));
}

at::Tensor reduce_from(const at::Tensor& input, Group group, CallOptions options,
                       Group::Where where) {
  check_defined(input, "reduce_from");
  return functional::perform(input, {"reduce_from", std::move(group), options, where},
                             functional::combine(Op::sum), functional::identity());
}

at::Tensor with_backward_of(const at::Tensor& value, at::TensorList results) {
  check_defined(value, "with_backward_of");
  std::vector<at::Tensor> recorded;
  std::ranges::copy_if(results, std::back_inserter(recorded),
                       [](const at::Tensor& result) { return Site::records(result); });
  return recorded.empty() ? value : Tied::apply(value, at::TensorList(recorded));
}

}  // namespace lockstep
