#include "parallel/tensor/experts.h"

#include "global/spec.h"
#include "models/language_models.h"
#include "module/tensors.h"
#include "parallel/tensor/tensor_parallel_parameter.h"

#include <lockstep/comm/functional.h>
#include <lockstep/global/tensor.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>

namespace lockstep::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The losses of the ranks are averaged, but an expert's gradients come from the tokens of all ranks
// of `ep`, so they are a sum over these. The same holds for the ranks of `cp` if they have parts of
// rows, and the strategy averages over these later.
struct Averaged : torch::autograd::Function<Averaged> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, double ranks) {
    context->saved_data["ranks"] = ranks;
    return weight.view_as(weight);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0] / context->saved_data["ranks"].toDouble(), at::Tensor()};
  }
};

// `rows` are sorted by i, then by j; counts[i][j] is the number of rows of a pair. Returns the rows
// sorted by j, then by i.
at::Tensor regrouped(const at::Tensor& rows, const at::Tensor& counts) {
  const auto pieces = rows.split_with_sizes(models::numbers_of(counts));
  const auto is = static_cast<std::size_t>(counts.size(0));
  const auto js = static_cast<std::size_t>(counts.size(1));
  std::vector<at::Tensor> sorted;
  for (std::size_t j = 0; j < js; ++j)
    for (std::size_t i = 0; i < is; ++i) sorted.push_back(pieces[i * js + j]);
  return at::cat(sorted);
}

}  // namespace

TokenExchange::Ranks TokenExchange::ranks_of(const Mesh& mesh) {
  Ranks ranks{.mesh = mesh, .group = mesh.group(), .peers = {}};
  std::vector<int> axes;
  if (const auto axis = mesh.layout().find("ep")) axes = {*axis};
  for (int rank : mesh.layout().peers(ranks.group.rank(), axes)) ranks.peers.push_back(rank);
  return ranks;
}

TokenExchange::TokenExchange(const Meshes& meshes, std::string name,
                             std::shared_ptr<GroupTraffic> sent)
    : all_(ranks_of(meshes.rows)),
      experts_(meshes.rows["ep"]),
      tensors_(meshes.tensors),
      name_(std::move(name)),
      sent_(std::move(sent)) {
  if (meshes.whole_rows) whole_rows_ = ranks_of(*meshes.whole_rows);
}

at::Tensor TokenExchange::enter(const at::Tensor& input) {
  placements_.clear();
  cut_.clear();
  if (!is_global(input)) return input;
  placements_ = Placements(tensors_->axes().size());
  const Placements had = lockstep::placements(input);
  for (std::size_t axis = 0; axis < had.size(); ++axis)
    if (tensors_->axes()[axis].name == "cp" && had[axis].is_shard() &&
        had[axis].dim() + 1 < input.dim()) {
      placements_[axis] = had[axis];
      cut_ = {had[axis]};
    }
  sizes_ = input.sizes().vec();
  return redistribute(input, placements_);
}

at::Tensor TokenExchange::local(const at::Tensor& around) {
  return is_global(around) ? local_tensor(redistribute(around, placements_)) : around;
}

std::vector<std::int64_t> TokenExchange::runs(std::int64_t tokens) {
  if (!is_cut()) return {tokens};
  const auto dim = static_cast<std::size_t>(cut_.front().dim());
  std::int64_t rows = 1, each = 1;
  for (std::size_t i = 0; i + 1 < sizes_.size(); ++i)
    if (i != dim) (i < dim ? rows : each) *= sizes_[i];
  // Ranks may have different numbers of rows: the missing ones are runs without tokens.
  const at::Tensor most = at::full({1}, rows, at::kLong);
  Group group = batch().group;
  group.all_reduce(most, Op::max, {.tag = "rows of " + name_}).wait();
  const auto ranges = global::ranges_of(sizes_[dim], cut_.front(), tensors_->size("cp"),
                                        tensors_->coordinate("cp"));
  std::vector<std::int64_t> runs;
  for (std::int64_t row = 0; row < most.item<std::int64_t>(); ++row)
    for (const layout::Range& range : ranges)
      runs.push_back(row < rows ? range.length() * each : 0);
  return runs;
}

at::Tensor TokenExchange::all_counts(const at::Tensor& counts) {
  Group group = batch().group;
  std::vector<std::int64_t> sizes = counts.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  at::Tensor all = at::empty(sizes, counts.options());
  group.all_gather(all, counts.contiguous(), {.tag = "counts of " + name_}).wait();
  return all;
}

at::Tensor TokenExchange::order(std::int64_t runs) {
  const Mesh& mesh = batch().mesh;
  const std::int64_t ranks = batch().group.size();
  if (!is_cut()) return at::arange(ranks * runs);
  const bool is_zigzag = cut_.front().is_zigzag();
  const std::int64_t parts = mesh.size("cp"), each = is_zigzag ? 2 : 1;
  // For each run of a rank's tokens: the rows of ranks before this one, the row, the segment of the
  // row, and the number of the run.
  std::vector<std::array<std::int64_t, 4>> places;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::vector<int> at = mesh.layout().coordinates(static_cast<int>(rank));
    std::int64_t before = 0, part = 0;
    for (std::size_t axis = 0; axis < at.size(); ++axis) {
      const MeshAxis& one = mesh.axes()[axis];
      if (one.name == "cp")
        part = at[axis];
      else
        before = before * one.size + at[axis];
    }
    for (std::int64_t run = 0; run < runs; ++run)
      places.push_back(
          {before, run / each, run % each == 0 ? part : 2 * parts - 1 - part, rank * runs + run});
  }
  std::ranges::sort(places);
  std::vector<std::int64_t> numbers;
  for (const auto& place : places) numbers.push_back(place.back());
  return at::tensor(numbers, at::kLong);
}

// Returns [ranks of `ep`, this rank's experts].
at::Tensor TokenExchange::of_experts(const at::Tensor& counts) const {
  const std::int64_t each = counts.size(1) / experts_.size();
  return counts.index_select(0, at::tensor(batch().peers, counts.options()))
      .narrow(1, experts_.rank() * each, each);
}

TokenExchange::Sizes TokenExchange::sizes_of(const at::Tensor& counts) const {
  const std::int64_t each = counts.size(1) / experts_.size();
  return {models::numbers_of(counts.select(0, rank()).view({experts_.size(), each}).sum(1)),
          models::numbers_of(of_experts(counts).sum(1))};
}

std::vector<std::int64_t> TokenExchange::rows_of_experts(const at::Tensor& counts) {
  return models::numbers_of(of_experts(counts).sum(0));
}

void TokenExchange::count(const std::vector<std::int64_t>& rows, const at::Tensor& of) {
  const std::int64_t leave = std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) -
                             rows[static_cast<std::size_t>(experts_.rank())];
  ++sent_->calls;
  sent_->bytes += leave * of.size(1) * static_cast<std::int64_t>(of.element_size());
}

at::Tensor TokenExchange::to_experts(const at::Tensor& rows, const at::Tensor& counts) {
  const Sizes sizes = sizes_of(counts);
  count(sizes.sent, rows);
  const at::Tensor come = all_to_all(rows, experts_, sizes.received, sizes.sent, /*dim=*/0,
                                     {.tag = "tokens to " + name_});
  return regrouped(come, of_experts(counts));
}

at::Tensor TokenExchange::back(const at::Tensor& rows, const at::Tensor& counts) {
  const Sizes sizes = sizes_of(counts);
  count(sizes.received, rows);
  const at::Tensor as_they_came = regrouped(rows, of_experts(counts).t());
  return all_to_all(as_they_came, experts_, sizes.sent, sizes.received, /*dim=*/0,
                    {.tag = "tokens from " + name_});
}

at::Tensor TokenExchange::own(const at::Tensor& weight) {
  const double parts = is_cut() ? tensors_->size("cp") : 1;
  return Averaged::apply(local_tensor(weight), experts_.size() / parts);
}

at::Tensor TokenExchange::leave(const at::Tensor& output) {
  return placements_.empty() ? output : from_local(output, *tensors_, placements_, sizes_);
}

at::Tensor TokenExchange::leave_loss(const at::Tensor& part) {
  if (placements_.empty()) return part;
  Placements sums(placements_.size());
  for (std::size_t axis = 0; axis < sums.size(); ++axis)
    if (placements_[axis].is_shard()) sums[axis] = Partial();
  return from_local(part, *tensors_, sums);
}

std::vector<NamedMixture> mixtures_of(torch::nn::Module& module) {
  std::vector<NamedMixture> found;
  // named_modules() cannot list a module that is not owned by a shared_ptr.
  if (auto* mixture = module.as<models::MixtureImpl>()) found.push_back({"", mixture});
  for (const auto& item : module.named_modules(std::string(), /*include_self=*/false))
    if (auto* mixture = item.value()->as<models::MixtureImpl>())
      found.push_back({item.key(), mixture});
  return found;
}

SeparateTensors separate_experts(torch::nn::Module& module) {
  std::set<const at::TensorImpl*> of_experts;
  for (const NamedMixture& one : mixtures_of(module))
    for (const at::Tensor& weight : {one.mixture->up, one.mixture->down})
      of_experts.insert(weight.unsafeGetTensorImpl());
  std::vector<Part> rest, experts;
  const auto add = [&](Part part) {
    const bool is_of_expert = of_experts.contains(part.tensor.unsafeGetTensorImpl());
    (is_of_expert ? experts : rest).push_back(std::move(part));
  };
  const modules::ModuleTensors tensors = modules::tensors_of(module);
  for (const auto& [name, tensor, aliases] : tensors.parameters)
    add({.name = name, .tensor = tensor, .aliases = aliases});
  for (const auto& [name, tensor] : tensors.buffers)
    add({.name = name, .tensor = tensor, .kind = PartKind::buffer});
  return {.rest = module_of_shards(rest),
          .experts = experts.empty() ? nullptr : module_of_shards(experts)};
}

TensorPlan plan_of_experts(const torch::nn::Module& experts) {
  TensorPlan plan;
  for (const NamedParameter& one : unique_parameters(experts))
    plan.emplace_back(one.name, Vocabulary());
  return plan;
}

void exchange_tokens(torch::nn::Module& module, const TokenExchange::Meshes& meshes,
                     const std::shared_ptr<GroupTraffic>& sent) {
  for (const auto& [name, mixture] : mixtures_of(module))
    mixture->set_exchange(std::make_shared<TokenExchange>(meshes, name, sent));
}

}  // namespace lockstep::tensor_parallel
