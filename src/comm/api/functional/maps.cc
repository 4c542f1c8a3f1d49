#include "comm/api/functional/maps.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <numeric>
#include <utility>

#include "base/format.h"

namespace lockstep::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The state of the autograd node of a recorded call.
struct Pair : torch::CustomClassHolder {
  Pair(Site site, Map map, Map conjugate)
      : site(std::move(site)), map(std::move(map)), conjugate(std::move(conjugate)) {}
  Site site;
  Map map, conjugate;
};

constexpr const char* pair_key = "pair";

struct Recorded : torch::autograd::Function<Recorded> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const c10::intrusive_ptr<Pair>& pair) {
    context->saved_data[pair_key] = c10::IValue::make_capsule(pair);
    Passing passing(pair->site, true);
    return pair->map(passing, input);
  }

  // Replace an undefined gradient by zeros: this rank must take part in the collective anyway.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto holder = context->saved_data.at(pair_key).toCapsule();
    const auto& pair = static_cast<const Pair&>(*holder);
    return {perform(gradients[0], pair.site.of_backward(), pair.conjugate, pair.map), at::Tensor()};
  }
};

}  // namespace

Site::Site(std::string_view name, Group group, const CallOptions& options, Group::Where where)
    : group(std::move(group)),
      name(options.tag.empty() ? name : options.tag),
      is_tagged(!options.tag.empty()),
      timeout(options.timeout),
      where(where) {}

bool Site::records(const at::Tensor& input) {
  return at::GradMode::is_enabled() && input.requires_grad();
}

Site Site::of_backward() const {
  auto site = *this;
  site.name = formatted("backward of {}", name);
  site.is_tagged = true;
  return site;
}

Passing::Passing(const Site& site, bool recorded) : site_(site), group_(site.group) {
  if (site.is_tagged) tag_ = site.name;
  if (recorded) tag_ += tag_.empty() ? "differentiable" : ", differentiable";
}

at::Tensor perform(const at::Tensor& input, const Site& site, Map map, Map conjugate) {
  if (Site::records(input)) {
    return Recorded::apply(input,
                           c10::make_intrusive<Pair>(site, std::move(map), std::move(conjugate)));
  }
  at::NoGradGuard no_grad;
  Passing passing(site, false);
  return map(passing, input);
}

namespace {

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.detach().clone(at::MemoryFormat::Contiguous);
}

at::Tensor with_first(const at::Tensor& tensor, std::int64_t dim) {
  return tensor.movedim(dim, 0).contiguous();
}

at::Tensor with_first_back(const at::Tensor& tensor, std::int64_t dim) {
  return tensor.movedim(0, dim).contiguous();
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

}  // namespace

Map identity() {
  return [](Passing&, const at::Tensor& input) { return input.view_as(input); };
}

Map combine(Op op) {
  return [op](Passing& passing, const at::Tensor& input) {
    auto output = copy_of(input);
    passing.group().all_reduce(output, op, passing.options(), passing.where()).wait();
    return output;
  };
}

Map send_from(int root) {
  return [root](Passing& passing, const at::Tensor& input) {
    bool mine = passing.group().is_root(root);
    auto output = mine ? copy_of(input) : at::empty_like(input, at::MemoryFormat::Contiguous);
    passing.group().broadcast(output, root, passing.options(), passing.where()).wait();
    return output;
  };
}

Map sum_at(int root) {
  return [root](Passing& passing, const at::Tensor& input) {
    bool mine = passing.group().is_root(root);
    auto sum = mine ? copy_of(input) : input.detach().contiguous();
    passing.group().reduce(sum, root, Op::sum, passing.options(), passing.where()).wait();
    return mine ? sum : at::zeros_like(sum);
  };
}

Map join(std::int64_t dim, Sizes sizes, bool divide) {
  return [dim, sizes = std::move(sizes), divide](Passing& passing, const at::Tensor& input) {
    Group& group = passing.group();
    auto part = with_first(input, dim);
    auto length = sizes.empty() ? part.size(0) * group.size() : sum_of(sizes);
    auto whole = empty_of_length(part, length);
    if (sizes.empty()) {
      group.all_gather(whole, part, passing.options(), passing.where()).wait();
    } else {
      auto counts = counts_of(sizes, part);
      group.all_gather(whole, part, counts, passing.options(), passing.where()).wait();
    }
    if (divide) whole.div_(group.size());
    return with_first_back(whole, dim);
  };
}

Map cut(std::int64_t dim, Sizes sizes, Op op) {
  return [dim, sizes = std::move(sizes), op](Passing& passing, const at::Tensor& input) {
    Group& group = passing.group();
    auto whole = with_first(input, dim);
    auto length = sizes.empty() ? whole.size(0) / group.size() : sizes.at(group.rank());
    auto part = empty_of_length(whole, length);
    if (sizes.empty()) {
      group.reduce_scatter(part, whole, op, passing.options(), passing.where()).wait();
    } else {
      auto counts = counts_of(sizes, whole);
      group.reduce_scatter(part, whole, counts, op, passing.options(), passing.where()).wait();
    }
    return with_first_back(part, dim);
  };
}

Map exchange(std::int64_t split_dim, std::int64_t join_dim) {
  return [split_dim, join_dim](Passing& passing, const at::Tensor& input) {
    auto ranks = passing.group().size();
    auto length = input.size(split_dim) / ranks;
    auto parts = with_first(input.unflatten(split_dim, {ranks, length}), split_dim);
    auto received = at::empty_like(parts);
    passing.group().all_to_all(received, parts, passing.options(), passing.where()).wait();
    return received.movedim(0, join_dim).flatten(join_dim, join_dim + 1).contiguous();
  };
}

Map exchange(std::int64_t dim, Sizes output_sizes, Sizes input_sizes) {
  return [dim, output_sizes = std::move(output_sizes), input_sizes = std::move(input_sizes)](
             Passing& passing, const at::Tensor& input) {
    auto from = with_first(input, dim);
    auto to = empty_of_length(from, sum_of(output_sizes));
    auto out = counts_of(output_sizes, from), in = counts_of(input_sizes, from);
    passing.group().all_to_all(to, from, out, in, passing.options(), passing.where()).wait();
    return with_first_back(to, dim);
  };
}

}  // namespace lockstep::functional
