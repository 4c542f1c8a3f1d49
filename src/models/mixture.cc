#include <lockstep/models/mixture.h>

#include "comm/backend/accelerator.h"
#include "models/language_models.h"

#include <lockstep/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace lockstep::models {
namespace {

MixtureOptions checked(const MixtureOptions& options) {
  auto positive = [](const char* name, std::int64_t value) {
    if (value < 1)
      throw InvalidArgument(c10::str("Mixture: expected ", name, " >= 1, found ", value));
  };
  positive("hidden_size", options.hidden_size);
  positive("ffn_size", options.ffn_size);
  positive("experts", options.experts);
  positive("top_k", options.top_k);
  if (options.top_k > options.experts)
    throw InvalidArgument(c10::str("Mixture: expected top_k of at most the number of experts, ",
                                   options.experts, ", found ", options.top_k));
  if (options.top_k == 1 && options.experts > 1 && options.softmax_after_choice)
    throw InvalidArgument(
        "Mixture: expected softmax_after_choice = false if one expert is chosen, found true: the "
        "softmax of one logit is always 1, so the router would not learn");
  auto not_negative = [](const char* name, double value) {
    if (!(value >= 0) || std::isinf(value))
      throw InvalidArgument(c10::str("Mixture: expected ", name, " >= 0, found ", value));
  };
  not_negative("capacity_factor", options.capacity_factor);
  not_negative("balance_weight", options.balance_weight);
  not_negative("z_weight", options.z_weight);
  return options;
}

// Returns the exclusive prefix sums along dim 0.
at::Tensor sums_before(const at::Tensor& counts) { return counts.cumsum(0) - counts; }

// Copies a tensor from host memory. The host does not wait for the copy if the device can read
// pinned memory.
at::Tensor copied_to(c10::Device device, const at::Tensor& host) {
  if (device.is_cpu()) return host;
  const bool is_pinned = pins_host_memory(device.type());
  return (is_pinned ? host.pin_memory() : host)
      .to(device, host.scalar_type(), /*non_blocking=*/is_pinned);
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Runs one product per group, which needs no padding, unlike one batched product. The first group
// has a product even without rows: if the weight is sharded, all ranks must gather it equally
// often.
void for_each_group(
    const std::vector<std::int64_t>& counts,
    const std::function<void(std::int64_t group, std::int64_t begin, std::int64_t count)>& run) {
  std::int64_t begin = 0;
  for (std::size_t group = 0; group < counts.size(); ++group) {
    run(static_cast<std::int64_t>(group), begin, counts[group]);
    begin += counts[group];
  }
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, const std::vector<std::int64_t>& counts) {
    context->save_for_backward({rows, weight});
    context->saved_data["counts"] = counts;
    at::Tensor result = at::empty({rows.size(0), weight.size(1)}, rows.options());
    for_each_group(counts, [&](auto group, auto begin, auto count) {
      if (count == 0 && group > 0) return;
      at::Tensor part = result.narrow(0, begin, count);
      at::mm_out(part, rows.narrow(0, begin, count), weight.select(0, group).t());
    });
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "Mixture: backward(create_graph=true) is not supported");
    const auto saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &weight = saved[1];
    const auto counts = context->saved_data["counts"].toIntVector();
    const at::Tensor of_result = gradients[0].contiguous();
    at::Tensor of_rows, of_weight;
    if (context->needs_input_grad(0)) of_rows = at::empty_like(rows);
    if (context->needs_input_grad(1)) of_weight = at::empty(weight.sizes(), of_result.options());
    for_each_group(counts, [&](auto group, auto begin, auto count) {
      if (count == 0 && of_weight.defined()) of_weight.select(0, group).zero_();
      if (count == 0 && group > 0) return;
      const at::Tensor given = of_result.narrow(0, begin, count);
      if (of_rows.defined()) {
        at::Tensor part = of_rows.narrow(0, begin, count);
        at::mm_out(part, given, weight.select(0, group));
      }
      if (of_weight.defined() && count > 0) {
        at::Tensor part = of_weight.select(0, group);
        at::mm_out(part, given.t(), rows.narrow(0, begin, count));
      }
    });
    return {of_rows, of_weight, at::Tensor()};
  }
};

}  // namespace

at::Tensor grouped_linear(const at::Tensor& rows, const at::Tensor& weight,
                          const std::vector<std::int64_t>& counts) {
  return GroupedLinear::apply(rows, weight, counts);
}

std::vector<std::int64_t> numbers_of(const at::Tensor& counts) {
  const at::Tensor flat = counts.cpu().contiguous();
  const auto* first = flat.const_data_ptr<std::int64_t>();
  return {first, first + flat.numel()};
}

// Routing of one batch. Choice c of token t has the number c * tokens + t. Counts of rows are in
// host memory, because sizes of tensors depend on them.
struct MixtureImpl::Routing {
  at::Tensor logits;         // [tokens, experts], in float at least
  at::Tensor probabilities;  // over all experts
  at::Tensor weights;        // [chosen * tokens]: one per choice
  at::Tensor order;          // numbers of the accepted choices, sorted by expert
  at::Tensor kept;           // [ranks, experts], in host memory: rows sent to each expert
  at::Tensor shares;         // [experts]: fraction of all choices of the batch
};

// The choices of this rank's tokens, by run (ExpertExchange::runs()).
struct MixtureImpl::Choices {
  at::Tensor keys;     // one per choice: (run * chosen + choice) * experts + expert
  at::Tensor all;      // [ranks, runs, chosen, experts], in host memory: counts
  std::int64_t total;  // over the batch
};

MixtureImpl::MixtureImpl(const MixtureOptions& options)
    : router(torch::nn::LinearOptions(checked(options).hidden_size, options.experts).bias(false)),
      options_(options) {
  register_module("router", router);
  up =
      register_parameter("up", at::empty({options.experts, options.ffn_size, options.hidden_size}));
  down = register_parameter("down",
                            at::empty({options.experts, options.hidden_size, options.ffn_size}));
  at::NoGradGuard no_grad;
  up.normal_(0.0, 0.02);
  down.normal_(0.0, 0.02);
  router->weight.normal_(0.0, 0.02);
}

MixtureImpl::Routing MixtureImpl::route(const at::Tensor& logits) {
  Routing routing;
  routing.logits = logits;
  routing.probabilities = logits.softmax(-1);
  const std::int64_t count = logits.size(0), experts = options_.experts, chosen = options_.top_k;
  const at::Tensor choices = std::get<1>(at::sort(logits.detach(), /*stable=*/true, /*dim=*/-1,
                                                  /*descending=*/true))
                                 .narrow(1, 0, chosen);
  const at::Tensor weights = options_.softmax_after_choice
                                 ? logits.gather(1, choices).softmax(-1)
                                 : routing.probabilities.gather(1, choices);
  routing.weights = weights.t().reshape({-1});
  const at::Tensor experts_of = choices.t().reshape({-1});
  const at::Tensor numbers = at::arange(chosen * count, experts_of.options());
  const bool is_limited = options_.capacity_factor > 0 && is_training();
  // If no choice is dropped, the order of the tokens does not matter.
  std::vector<std::int64_t> runs = {count};
  if (exchange_ && is_limited) runs = exchange_->runs(count);
  const auto run_count = static_cast<std::int64_t>(runs.size());
  at::Tensor keys = experts_of + numbers.floor_divide(std::max<std::int64_t>(count, 1)) * experts;
  if (run_count > 1) {
    const at::Tensor run_of = at::repeat_interleave(at::tensor(runs));
    keys = keys + copied_to(keys.device(), run_of.repeat({chosen})) * (chosen * experts);
  }
  const at::Tensor counts = at::zeros({run_count * chosen * experts}, keys.options())
                                .scatter_add_(0, keys, at::ones_like(keys))
                                .view({run_count, chosen, experts});
  const at::Tensor all = exchange_ ? exchange_->all_counts(counts) : counts.unsqueeze(0);
  const at::Tensor of_experts = all.sum(at::IntArrayRef{0, 1, 2});
  routing.order = at::argsort(experts_of, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor on_host = all.cpu();  // the host waits for the device here and nowhere else
  const Choices found{.keys = keys, .all = on_host, .total = on_host.sum().item<std::int64_t>()};
  routing.shares = of_experts.to(logits.scalar_type())
                       .div_(static_cast<double>(std::max<std::int64_t>(found.total, 1)));
  routing.kept = on_host.sum(at::IntArrayRef{1, 2});
  if (is_limited) find_room(routing, found);
  load_.chosen = numbers_of(on_host.sum(at::IntArrayRef{0, 1, 2}));
  load_.dropped = found.total - routing.kept.sum().item<std::int64_t>();
  return routing;
}

// Drops choices that exceed the capacity of their expert. First choices of all tokens are accepted
// first, in batch order.
void MixtureImpl::find_room(Routing& routing, const Choices& choices) {
  const std::int64_t experts = options_.experts, chosen = options_.top_k;
  const std::int64_t runs = choices.all.size(1), own = exchange_ ? exchange_->rank() : 0;
  const auto total = static_cast<double>(choices.total);
  const double wanted = std::ceil(options_.capacity_factor * total / static_cast<double>(experts));
  // A larger capacity drops nothing either, and may not fit the integer.
  const auto capacity = static_cast<std::int64_t>(std::min(wanted, total));
  const at::Tensor flat = choices.all.flatten(0, 1);  // [ranks * runs, chosen, experts]
  at::Tensor earlier = sums_before(flat);
  if (exchange_) {
    const at::Tensor order = exchange_->order(runs);
    earlier = at::empty_like(flat).index_copy_(0, order, sums_before(flat.index_select(0, order)));
  }
  const at::Tensor before = (sums_before(flat.sum(0)) + earlier).view(choices.all.sizes());
  routing.kept = at::minimum((capacity - before).clamp_min(0), choices.all).sum({1, 2});
  // Computes the position of each choice in the queue of its expert. A group is the choices of the
  // same number, in one run, of one expert: `first` is its place in the order of this rank,
  // `begins` in the queue.
  const at::Tensor first = sums_before(choices.all.select(0, own).permute({2, 1, 0}).reshape({-1}));
  const at::Tensor begins = before.select(0, own).permute({2, 1, 0}).reshape({-1});
  const at::Tensor sorted = choices.keys.index_select(0, routing.order);
  const at::Tensor choice = sorted.floor_divide(experts).remainder(chosen);
  const at::Tensor run = sorted.floor_divide(chosen * experts);
  const at::Tensor group = (sorted.remainder(experts) * chosen + choice) * runs + run;
  const at::Tensor place = at::arange(sorted.numel(), sorted.options()) +
                           copied_to(sorted.device(), begins - first).index_select(0, group);
  // Sorts the accepted choices to the front, because masked_select() waits for their number.
  const at::Tensor front =
      at::argsort(place >= capacity, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto accepted = routing.kept.select(0, own).sum().item<std::int64_t>();
  routing.order = routing.order.index_select(0, front.narrow(0, 0, accepted));
}

// `tokens` is the number of tokens over which the loss is a mean; this rank may have only some of
// them.
at::Tensor MixtureImpl::loss(const Routing& routing, std::int64_t tokens) const {
  const auto all = static_cast<double>(std::max<std::int64_t>(tokens, 1));
  const at::Tensor balance = (routing.probabilities.sum(0) / all).dot(routing.shares) *
                             static_cast<double>(options_.experts);
  const at::Tensor z = routing.logits.logsumexp(-1).square().sum() / all;
  return balance * options_.balance_weight + z * options_.z_weight;
}

MixtureImpl::Result MixtureImpl::forward(const at::Tensor& x) {
  const at::Tensor entered = exchange_ ? exchange_->enter(x) : x;
  const auto wide = at::promote_types(x.scalar_type(), at::kFloat);
  at::Tensor logits;
  {
    const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
    logits = at::linear(entered.to(wide), router->weight.to(wide));
  }
  const at::Tensor own = exchange_ ? exchange_->local(entered) : entered;
  const at::Tensor tokens = own.reshape({-1, options_.hidden_size});
  const std::int64_t count = tokens.size(0);
  const Routing routing =
      route((exchange_ ? exchange_->local(logits) : logits).reshape({-1, options_.experts}));
  const at::Tensor sources = routing.order.remainder(std::max<std::int64_t>(count, 1));
  at::Tensor rows = tokens.index_select(0, sources);
  at::Tensor own_up = up, own_down = down;
  std::vector<std::int64_t> counts;
  if (exchange_) {
    rows = exchange_->to_experts(rows, routing.kept);
    counts = exchange_->rows_of_experts(routing.kept);
    own_up = exchange_->own(up);
    own_down = exchange_->own(down);
  } else {
    counts = numbers_of(routing.kept.select(0, 0));
  }
  rows = grouped_linear(at::gelu(grouped_linear(rows, own_up, counts)), own_down, counts);
  if (exchange_) rows = exchange_->back(rows, routing.kept);
  const at::Tensor weights = routing.weights.index_select(0, routing.order).to(rows.scalar_type());
  const at::Tensor output =
      at::zeros_like(tokens).index_add(0, sources, rows * weights.unsqueeze(-1)).view(own.sizes());
  const at::Tensor part = loss(routing, entered.numel() / options_.hidden_size);
  if (!exchange_) return {output, part};
  return {exchange_->leave(output), exchange_->leave_loss(part)};
}

}  // namespace lockstep::models
