#include "parallel/server/served_parameters.h"

#include "base/check.h"
#include "comm/backend/tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

namespace lockstep::ps {
namespace {

layout::TensorSlice slice_of(const Key& key, const Piece& piece) {
  if (key.sizes.empty()) return layout::whole_slice(key.sizes);
  layout::Box box = layout::box_of(key.sizes);
  box.offsets.front() = piece.rows.begin;
  box.sizes.front() = piece.rows.length();
  return layout::box_slice(key.sizes, std::move(box));
}

bool has_gradient(const PushedGradients& gradients, std::size_t piece) {
  return gradients.flags.data_ptr<std::uint8_t>()[piece] != 0;
}

// The mean in the order of Group's sums, rounded once.
at::Tensor mean_of(const std::vector<at::Tensor>& values) {
  return reduce_in_tree(values, Op::average).to(values.front().scalar_type());
}

}  // namespace

std::vector<at::Tensor> tensors_of(const std::vector<Part>& parts) {
  std::vector<at::Tensor> tensors;
  for (const Part& part : parts) tensors.push_back(part.tensor);
  return tensors;
}

ServedParameters::ServedParameters(std::vector<Key> keys, std::vector<Piece> pieces,
                                   const at::Tensor& values, const MakeOptimizer& make_optimizer)
    : keys_(std::move(keys)),
      pieces_(std::move(pieces)),
      whole_(keys_, pieces_, Share::Kind::whole),
      by_rows_(keys_, pieces_, Share::Kind::by_rows) {
  const Share all(keys_, pieces_, Share::Kind::all);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Key& key = keys_[static_cast<std::size_t>(pieces_[i].key)];
    parameters_.push_back(all.view(values, i).clone().requires_grad_());
    parts_.push_back({key.name, parameters_.back(), {}, slice_of(key, pieces_[i])});
  }
  if (!parts_.empty()) {
    optimizer_ = make_optimizer(parts_);
    check(optimizer_ != nullptr,
          "parameter server: ServerOptions::optimizer must return an optimizer, found null");
  }
}

void ServedParameters::update(std::span<const PushedGradients* const> gradients,
                              const std::function<void(torch::optim::Optimizer&)>& step) {
  if (!optimizer_) return;
  {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < whole_.size(); ++i) set_whole(i, gradients);
    for (std::size_t i = 0; i < by_rows_.size(); ++i) set_rows(i, gradients);
  }
  step(*optimizer_);
}

void ServedParameters::request(std::string_view text, const OnRequest& action) {
  action(text, parts_, optimizer_.get());
}

void ServedParameters::set_whole(std::size_t i, std::span<const PushedGradients* const> gradients) {
  const std::size_t piece = whole_.number(i);
  at::Tensor& gradient = parameters_[piece].mutable_grad();
  std::vector<at::Tensor> values;
  bool any = false;
  for (const PushedGradients* one : gradients) {
    const bool has = has_gradient(*one, piece);
    any = any || has;
    values.push_back(has ? whole_.view(one->whole, i) : at::zeros_like(parameters_[piece]));
  }
  if (!any) return gradient.reset();
  gradient = values.size() == 1 ? values.front() : mean_of(values);
}

void ServedParameters::set_rows(std::size_t i, std::span<const PushedGradients* const> gradients) {
  const std::size_t piece = by_rows_.number(i);
  at::Tensor& gradient = parameters_[piece].mutable_grad();
  if (std::ranges::none_of(gradients, [&](auto* one) { return has_gradient(*one, piece); }))
    return gradient.reset();
  if (!gradient.defined()) gradient = at::zeros_like(parameters_[piece]);
  gradient.zero_();
  std::vector<at::Tensor> all_rows, values;
  for (const PushedGradients* one : gradients) all_rows.push_back(one->rows[i]);
  at::Tensor rows = std::get<0>(at::_unique(at::cat(all_rows)));  // sorted
  if (rows.numel() == 0) return;
  std::vector<std::int64_t> sizes = parameters_[piece].sizes().vec();
  sizes.front() = rows.numel();
  for (const PushedGradients* one : gradients) {
    values.push_back(at::zeros(sizes, parameters_[piece].options().requires_grad(false)));
    if (one->rows[i].numel() > 0)
      values.back().index_copy_(0, at::searchsorted(rows, one->rows[i]), one->values[i]);
  }
  gradient.index_copy_(0, rows, values.size() == 1 ? values.front() : mean_of(values));
}

std::pair<ServedParameters::Tensors, ServedParameters::Tensors> ServedParameters::cut_rows(
    const at::Tensor& counts, const at::Tensor& rows, const at::Tensor& values) const {
  Tensors rows_of_pieces, values_of_pieces;
  std::int64_t row = 0, byte = 0;
  for (std::size_t i = 0; i < by_rows_.size(); ++i) {
    const at::Tensor& parameter = parameters_[by_rows_.number(i)];
    const std::int64_t count = counts.data_ptr<std::int64_t>()[i];
    const std::int64_t row_bytes =
        static_cast<std::int64_t>(parameter.nbytes()) / parameter.size(0);
    check_input(
        count >= 0 && row + count <= rows.numel() && byte + count * row_bytes <= values.numel(),
        "parameter server: a push has fewer rows than it announces, {}", count);
    at::Tensor own = rows.narrow(0, row, count);
    check_input(count == 0 || (own.min().item<std::int64_t>() >= 0 &&
                               own.max().item<std::int64_t>() < parameter.size(0)),
                "parameter server: a push has a row that does not exist");
    std::vector<std::int64_t> sizes = parameter.sizes().vec();
    sizes.front() = count;
    rows_of_pieces.push_back(own);
    values_of_pieces.push_back(values.narrow(0, byte, count * row_bytes)
                                   .clone()  // where its dtype may begin
                                   .view(parameter.scalar_type())
                                   .view(sizes));
    row += count;
    byte += count * row_bytes;
  }
  return {std::move(rows_of_pieces), std::move(values_of_pieces)};
}

void ServedParameters::read(const at::Tensor& buffer) const {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < whole_.size(); ++i)
    whole_.view(buffer, i).copy_(parameters_[whole_.number(i)]);
}

at::Tensor ServedParameters::read_rows(std::size_t piece, const at::Tensor& rows) const {
  at::NoGradGuard no_grad;
  check_input(piece < by_rows_.size(),
              "parameter server: rows of piece {} were requested, but only {} are sent by rows",
              piece, by_rows_.size());
  const std::int64_t count = parameters_[by_rows_.number(piece)].size(0);
  check_input(rows.numel() == 0 ||
                  (rows.min().item<std::int64_t>() >= 0 && rows.max().item<std::int64_t>() < count),
              "parameter server: expected a request for rows from 0 to {}, found others",
              count - 1);
  return at::index_select(parameters_[by_rows_.number(piece)], 0, rows);
}

}  // namespace lockstep::ps
