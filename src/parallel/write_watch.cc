#include "parallel/write_watch.h"

#include "base/fingerprint.h"
#include "base/format.h"

#include <lockstep/dispatch/part.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>

namespace lockstep::parallel {
namespace {

constexpr double rounding = 1e-3;  // of the largest element: kernels of two machines may differ

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

at::Tensor values_of(const NamedParameter& parameter) {
  return dispatch::values_of(parameter.tensor).detach();
}

at::Tensor real_values_of(const at::Tensor& values) {
  return values.is_complex() ? at::view_as_real(values) : values;
}

// An extension's device (PrivateUse1) may lack the operations of a fingerprint.
at::Tensor where_it_can_be_read(const at::Tensor& values) {
  return values.is_privateuseone() ? values.cpu() : values;
}

bool is_far(const at::Tensor& own, const at::Tensor& other) {
  const double distance = (own.to(at::kDouble) - other.to(at::kDouble)).abs().max().item<double>();
  return !(distance <= rounding * other.abs().max().item<double>());
}

}  // namespace

// Adds in pieces whose sums are exact in any order.
std::int64_t fingerprint_of_bits(const at::Tensor& values) {
  static constexpr at::ScalarType integers[] = {at::kChar, at::kShort, at::kInt, at::kLong};
  constexpr std::int64_t piece = std::int64_t{1} << 20;
  const at::Tensor real = real_values_of(where_it_can_be_read(values));
  const auto size = static_cast<unsigned>(real.element_size());
  const at::Tensor bits = real.contiguous().view(integers[std::countr_zero(size)]).view({-1});
  const at::Tensor places =
      at::arange(std::min(piece, bits.numel()), bits.options().dtype(at::kLong)).mul_(2).add_(1);
  std::uint64_t all = 0;
  for (std::int64_t begin = 0; begin < bits.numel(); begin += piece) {
    const std::int64_t count = std::min(piece, bits.numel() - begin);
    const at::Tensor products =
        bits.narrow(0, begin, count).to(at::kLong).mul(places.narrow(0, 0, count));
    all =
        combine_fingerprints(all, static_cast<std::uint64_t>(products.sum().item<std::int64_t>()));
  }
  return static_cast<std::int64_t>(all);
}

void WriteWatch::begin() {
  versions_.clear();
  for (const NamedParameter& parameter : parameters_)
    versions_.push_back(version_of(parameter.tensor));
}

bool WriteWatch::has_written() const {
  for (std::size_t i = 0; i < versions_.size(); ++i)
    if (version_of(parameters_[i].tensor) != versions_[i]) return true;
  return false;
}

std::vector<std::size_t> WriteWatch::written_on_some_rank(Group& group) const {
  const at::Tensor written = at::zeros({static_cast<std::int64_t>(parameters_.size())}, at::kInt);
  auto* flags = written.mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < versions_.size(); ++i)
    flags[i] = version_of(parameters_[i].tensor) != versions_[i] ? 1 : 0;
  group.all_reduce(written, Op::max, call_).wait();
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (flags[i] != 0) places.push_back(i);
  return places;
}

void WriteWatch::compare(Group& group, bool some_wrote) {
  const bool compares_all = std::has_single_bit(++steps_);
  if (group.size() == 1 || parameters_.empty() || (!some_wrote && !compares_all)) return;
  std::vector<std::size_t> places(parameters_.size());
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
  if (!compares_all) places = written_on_some_rank(group);
  const auto count = static_cast<std::int64_t>(places.size());
  const at::Tensor own = at::empty({count}, at::kLong);
  const at::Tensor all = at::empty({group.size(), count}, at::kLong);
  for (std::size_t k = 0; k < places.size(); ++k)
    own.mutable_data_ptr<std::int64_t>()[k] =
        fingerprint_of_bits(values_of(parameters_[places[k]]));
  group.all_gather(all, own, call_).wait();
  for (std::int64_t k = 0; k < count; ++k)
    if (all.select(1, k).ne(all[0][k]).any().item<bool>())
      compare_values(group, places[static_cast<std::size_t>(k)]);
}

// Compares the values of a parameter whose bits differ between ranks.
void WriteWatch::compare_values(Group& group, std::size_t parameter) const {
  const NamedParameter& one = parameters_[parameter];
  const at::Tensor own = real_values_of(values_of(one)).contiguous();
  const at::Tensor of_root = own.clone();
  group.broadcast(of_root, 0, call_).synchronize();
  const at::Tensor far = at::zeros({1}, own.options().dtype(at::kInt));
  if (is_far(own, of_root)) far.fill_(group.rank());
  at::Tensor rank = far.clone();
  group.all_reduce(rank, Op::max, call_).synchronize();
  const int other = rank.item<int>();
  if (other == 0) return;
  throw ComparedMismatch(formatted(
      "{}: parameter {} has other values on rank {} than on rank 0: a rank has written it in place "
      "by what its own batch or program says, as an embedding with max_norm does in forward(), and "
      "the ranks would drift apart; write it after the optimizer's step(), the same on all ranks "
      "(weight.renorm_(2, 0, max_norm) in place of max_norm)",
      call_.tag, one.name, other));
}

}  // namespace lockstep::parallel
