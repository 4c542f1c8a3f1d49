#include "parallel/tensor/token_exchange.h"

#include <lockstep/comm/functional.h>
#include <lockstep/global/redistribute.h>
#include <lockstep/global/tensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <utility>

namespace lockstep::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Losses of the ranks count by their average, and gradients of an expert come from the tokens of
// all of them: what the ranks of `ep` have is their sum.
struct Averaged : torch::autograd::Function<Averaged> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight,
                            std::int64_t ranks) {
    context->saved_data["ranks"] = ranks;
    return weight.view_as(weight);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0] / context->saved_data["ranks"].toInt(), at::Tensor()};
  }
};

std::vector<std::int64_t> numbers_of(const at::Tensor& counts) {
  const at::Tensor flat = counts.contiguous();
  const auto* first = flat.const_data_ptr<std::int64_t>();
  return {first, first + flat.numel()};
}

}  // namespace

TokenExchange::TokenExchange(const Mesh& mesh, std::optional<Mesh> tensors, std::string name,
                             std::shared_ptr<Sent> sent)
    : batch_(mesh.group()),
      experts_(mesh["ep"]),
      tensors_(std::move(tensors)),
      name_(std::move(name)),
      sent_(std::move(sent)) {
  const int axis = mesh.layout().axis("ep");
  for (int rank : mesh.layout().peers(batch_.rank(), {&axis, 1})) ranks_.push_back(rank);
}

at::Tensor TokenExchange::all_counts(const at::Tensor& counts) {
  std::vector<std::int64_t> sizes = counts.sizes().vec();
  sizes.insert(sizes.begin(), batch_.size());
  at::Tensor all = at::empty(sizes, counts.options());
  batch_.all_gather(all, counts.contiguous(), {.tag = "counts of " + name_}).wait();
  return all;
}

// [ranks of `ep`, this rank's experts]
at::Tensor TokenExchange::of_experts(const at::Tensor& counts) const {
  const std::int64_t each = counts.size(1) / experts_.size();
  return counts.index_select(0, at::tensor(ranks_, counts.options()))
      .narrow(1, experts_.rank() * each, each);
}

TokenExchange::Sizes TokenExchange::sizes_of(const at::Tensor& counts) const {
  const std::int64_t each = counts.size(1) / experts_.size();
  return {numbers_of(counts.select(0, batch_.rank()).view({experts_.size(), each}).sum(1)),
          numbers_of(of_experts(counts).sum(1))};
}

std::vector<std::int64_t> TokenExchange::rows_of_experts(const at::Tensor& counts) {
  return numbers_of(of_experts(counts).sum(0));
}

at::Tensor TokenExchange::order_of(const at::Tensor& counts) const {
  const at::Tensor of = of_experts(counts);
  const at::Tensor experts = at::arange(of.size(1), of.options()).expand_as(of).reshape({-1});
  return at::argsort(at::repeat_interleave(experts, of.reshape({-1})), /*stable=*/true, /*dim=*/0,
                     /*descending=*/false);
}

void TokenExchange::count(const std::vector<std::int64_t>& rows, const at::Tensor& of) {
  const std::int64_t leave = std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) -
                             rows[static_cast<std::size_t>(experts_.rank())];
  const std::int64_t bytes = leave * of.size(1) * static_cast<std::int64_t>(of.element_size());
  ++sent_->total.calls;
  sent_->total.bytes += bytes;
}

at::Tensor TokenExchange::to_experts(const at::Tensor& rows, const at::Tensor& counts) {
  const Sizes sizes = sizes_of(counts);
  count(sizes.sent, rows);
  const at::Tensor come = all_to_all(rows, experts_, sizes.received, sizes.sent, /*dim=*/0,
                                     {.tag = "tokens to " + name_});
  return come.index_select(0, order_of(counts));
}

at::Tensor TokenExchange::back(const at::Tensor& rows, const at::Tensor& counts) {
  const Sizes sizes = sizes_of(counts);
  count(sizes.received, rows);
  // The inverse of a permutation sorts it.
  const at::Tensor as_they_came = rows.index_select(0, order_of(counts).argsort());
  return all_to_all(as_they_came, experts_, sizes.sent, sizes.received, /*dim=*/0,
                    {.tag = "tokens from " + name_});
}

at::Tensor TokenExchange::own(const at::Tensor& weight) {
  return Averaged::apply(local_tensor(weight), experts_.size());
}

at::Tensor TokenExchange::enter(const at::Tensor& around) {
  if (!is_global(around)) return around;
  return local_tensor(redistribute(around, Placements(placements(around).size())));
}

at::Tensor TokenExchange::leave(const at::Tensor& inside) {
  return tensors_ ? from_local(inside, *tensors_, Placements(tensors_->axes().size())) : inside;
}

}  // namespace lockstep::tensor_parallel
