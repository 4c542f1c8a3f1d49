#include <lockstep/comm/functional.h>

#include "base/check.h"
#include "base/format.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The call site and the options of the group's calls; kept for backward().
struct Site {
  Site(std::string_view function, Group group, const CallOptions& options, Group::Where where)
      : group(std::move(group)),
        name(options.tag.empty() ? function : options.tag),
        tag(options.tag),
        timeout(options.timeout),
        where(where) {}

  [[nodiscard]] CallOptions options() const { return {.tag = tag, .timeout = timeout}; }

  // Returns true if a call with this operand is recorded for backward. Part of the tag, so that
  // ranks that differ get a Mismatch.
  [[nodiscard]] static bool records(const at::Tensor& input) {
    return at::GradMode::is_enabled() && input.requires_grad();
  }
  [[nodiscard]] Site of_recorded() const {
    auto site = *this;
    site.tag += tag.empty() ? "differentiable" : ", differentiable";
    return site;
  }
  [[nodiscard]] Site of_backward() const {
    auto site = *this;
    site.name = site.tag = formatted("backward of {}", name);
    return site;
  }

  Group group;
  std::string name;  // the user's tag, else the function's name
  std::string tag;
  std::optional<Duration> timeout;
  Group::Where where;
};

// Makes a new contiguous tensor and blocks until it is complete; runs without grad mode.
using Map = std::function<at::Tensor(Site&, const at::Tensor&)>;

// Returns the gradient of the input, given that of the result and the saved tensors.
using Backward =
    std::function<at::Tensor(const Site&, const at::Tensor& gradient, const variable_list& saved)>;

// The state of the autograd node of a recorded call. Saves the first `saved` of input and result.
struct Node : torch::CustomClassHolder {
  Node(Site site, Map map, Backward backward, std::size_t saved)
      : site(std::move(site)), map(std::move(map)), backward(std::move(backward)), saved(saved) {}
  Site site;
  Map map;
  Backward backward;
  std::size_t saved;
};

constexpr const char* node_key = "node";

struct Recorded : torch::autograd::Function<Recorded> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const c10::intrusive_ptr<Node>& node) {
    context->saved_data[node_key] = c10::IValue::make_capsule(node);
    auto site = node->site.of_recorded();
    auto output = node->map(site, input);
    variable_list saved{input, output};
    saved.resize(node->saved);
    context->save_for_backward(std::move(saved));
    return output;
  }

  // LibTorch replaces an undefined gradient by zeros: this rank must take part in the collective
  // anyway.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto holder = context->saved_data.at(node_key).toCapsule();
    const auto& node = static_cast<const Node&>(*holder);
    return {node.backward(node.site.of_backward(), gradients[0], context->get_saved_variables()),
            at::Tensor()};
  }
};

// Returns map(input), differentiable by `backward`.
at::Tensor perform(const at::Tensor& input, Site site, Map map, Backward backward,
                   std::size_t saved) {
  if (Site::records(input))
    return Recorded::apply(input, c10::make_intrusive<Node>(std::move(site), std::move(map),
                                                            std::move(backward), saved));
  at::NoGradGuard no_grad;
  return map(site, input);
}

// Returns map(input), differentiable by `conjugate`, which needs no saved tensors.
at::Tensor perform(const at::Tensor& input, const Site& site, const Map& map, Map conjugate) {
  auto backward = [map, conjugate = std::move(conjugate)](
                      const Site& of_backward, const at::Tensor& gradient, const variable_list&) {
    return perform(gradient, of_backward, conjugate, map);
  };
  return perform(input, site, map, std::move(backward), 0);
}

// The maps do not use autograd. Dims must not be negative; sizes must have been checked.

// One length per rank along a dim.
using Sizes = std::vector<std::int64_t>;

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.detach().clone(at::MemoryFormat::Contiguous);
}

at::Tensor with_first(const at::Tensor& tensor, std::int64_t dim) {
  return tensor.movedim(dim, 0).contiguous();
}

at::Tensor empty_of_length(const at::Tensor& like, std::int64_t length) {
  auto sizes = like.sizes().vec();
  sizes[0] = length;
  return at::empty(sizes, like.options());
}

std::int64_t sum_of(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

// Converts lengths of dim 0 to numbers of elements.
Sizes counts_of(const Sizes& sizes, const at::Tensor& tensor) {
  std::int64_t row = 1;
  for (std::int64_t dim = 1; dim < tensor.dim(); ++dim) row *= tensor.size(dim);
  Sizes counts = sizes;
  for (auto& count : counts) count *= row;
  return counts;
}

Map identity() {
  return [](Site&, const at::Tensor& input) { return input.view_as(input); };
}

Map combine(Op op) {
  return [op](Site& site, const at::Tensor& input) {
    auto output = copy_of(input);
    site.group.all_reduce(output, op, site.options(), site.where).wait();
    return output;
  };
}

Map send_from(int root) {
  return [root](Site& site, const at::Tensor& input) {
    bool mine = site.group.is_root(root);
    auto output = mine ? copy_of(input) : at::empty_like(input, at::MemoryFormat::Contiguous);
    site.group.broadcast(output, root, site.options(), site.where).wait();
    return output;
  };
}

Map sum_at(int root) {
  return [root](Site& site, const at::Tensor& input) {
    bool mine = site.group.is_root(root);
    auto sum = mine ? copy_of(input) : input.detach().contiguous();
    site.group.reduce(sum, root, Op::sum, site.options(), site.where).wait();
    return mine ? sum : at::zeros_like(sum);
  };
}

// If `divide`, divides the result by the number of ranks.
Map join(std::int64_t dim, Sizes sizes, bool divide = false) {
  return [dim, sizes = std::move(sizes), divide](Site& site, const at::Tensor& input) {
    auto part = with_first(input, dim);
    auto whole = empty_of_length(part, sum_of(sizes));
    site.group.all_gather(whole, part, counts_of(sizes, part), site.options(), site.where).wait();
    if (divide) whole.div_(site.group.size());
    return whole.movedim(0, dim).contiguous();
  };
}

Map cut(std::int64_t dim, Sizes sizes, Op op) {
  return [dim, sizes = std::move(sizes), op](Site& site, const at::Tensor& input) {
    auto whole = with_first(input, dim);
    auto part = empty_of_length(whole, sizes.at(site.group.rank()));
    auto counts = counts_of(sizes, whole);
    site.group.reduce_scatter(part, whole, counts, op, site.options(), site.where).wait();
    return part.movedim(0, dim).contiguous();
  };
}

Map exchange(std::int64_t split_dim, std::int64_t join_dim) {
  return [split_dim, join_dim](Site& site, const at::Tensor& input) {
    auto ranks = site.group.size();
    auto length = input.size(split_dim) / ranks;
    auto parts = with_first(input.unflatten(split_dim, {ranks, length}), split_dim);
    auto received = at::empty_like(parts);
    site.group.all_to_all(received, parts, site.options(), site.where).wait();
    return received.movedim(0, join_dim).flatten(join_dim, join_dim + 1).contiguous();
  };
}

Map exchange(std::int64_t dim, Sizes output_sizes, Sizes input_sizes) {
  return [dim, output_sizes = std::move(output_sizes), input_sizes = std::move(input_sizes)](
             Site& site, const at::Tensor& input) {
    auto from = with_first(input, dim);
    auto to = empty_of_length(from, sum_of(output_sizes));
    auto out = counts_of(output_sizes, from), in = counts_of(input_sizes, from);
    site.group.all_to_all(to, from, out, in, site.options(), site.where).wait();
    return to.movedim(0, dim).contiguous();
  };
}

// The reductions that are not linear, with their gradients: min, max and product.

at::Tensor sum_over_ranks(const at::Tensor& tensor, const Site& site) {
  return perform(tensor, site, combine(Op::sum), combine(Op::sum));
}

// Op::min or Op::max. Ranks that share the extreme value share its gradient equally, as at::amax
// does.
at::Tensor extreme(const at::Tensor& input, const Site& site, Op op) {
  auto backward = [](const Site& of_backward, const at::Tensor& gradient,
                     const variable_list& saved) {
    at::Tensor share;
    {
      at::NoGradGuard no_grad;
      auto mine = saved[0].eq(saved[1]).to(gradient.scalar_type());
      share = mine / sum_over_ranks(mine, of_backward);
    }
    return sum_over_ranks(gradient, of_backward) * share;
  };
  return perform(input, site, combine(op), backward, 2);
}

// Op::product. The gradient is computed as a product over the other ranks, so it is correct for
// factors of zero.
at::Tensor product(const at::Tensor& input, const Site& site) {
  auto backward = [](const Site& of_backward, const at::Tensor& gradient,
                     const variable_list& saved) {
    int rank = of_backward.group.rank(), size = of_backward.group.size();
    const Sizes ones(size, 1);
    auto all = perform(saved[0].unsqueeze(0), of_backward, join(0, ones), cut(0, ones, Op::sum));
    auto others = at::cat({all.narrow(0, 0, rank), all.narrow(0, rank + 1, size - rank - 1)});
    return sum_over_ranks(gradient, of_backward) * others.prod(0);
  };
  return perform(input, site, combine(Op::product), backward, 1);
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
  const Sizes even(group.size(), input.size(place_of(input, dim, "all_gather")));
  return all_gather(input, std::move(group), even, dim, options, where);
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
  check_divisible(input, place, group, "reduce_scatter");
  const Sizes even(group.size(), input.size(place) / group.size());
  return reduce_scatter(input, std::move(group), even, dim, op, options, where);
}

at::Tensor reduce_scatter(const at::Tensor& input, Group group, SizesView sizes, std::int64_t dim,
                          Op op, CallOptions options, Group::Where where) {
  auto place = place_of(input, dim, "reduce_scatter");
  check_linear(op);
  auto all = checked(sizes, group, "reduce_scatter");
  check_length(input, place, functional::sum_of(all), "reduce_scatter");
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
  check_length(input, place, functional::sum_of(in), "all_to_all");
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
