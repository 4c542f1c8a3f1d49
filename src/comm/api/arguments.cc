#include "comm/api/arguments.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <array>
#include <numeric>

namespace lockstep {
namespace {

// Integers that ATen calculates with everywhere; the unsigned ones above 8 bits can only be moved.
bool is_integral(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

// Why its memory does not hold its values, one after another, and what to pass instead; empty: it
// does.
std::string_view objection_to(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return "is zeros without memory; pass a clone() of it";
  if (!tensor.is_contiguous()) return "is not contiguous; pass a contiguous tensor";
  if (tensor.is_conj()) return "is a conjugated view; pass its resolve_conj()";
  if (tensor.is_neg()) return "is a negated view; pass its resolve_neg()";
  return {};
}

bool is_floating(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

}  // namespace

Arguments::Arguments(Collective collective, std::string_view group, int rank, int size)
    : name_(name_of(collective)), group_(group), rank_(rank), size_(size) {}

template <class... Values>
void Arguments::refuse(std::string_view format, const Values&... values) const {
  const std::array<FormatArgument, sizeof...(Values)> list{FormatArgument(values)...};
  throw InvalidArgument(formatted("{} on group {} (rank {} of {}): {}", name_, group_, rank_, size_,
                                  formatted_from(format, list)));
}

void Arguments::plain(const at::Tensor& tensor, std::string_view role) const {
  if (!tensor.defined()) refuse("the {} is undefined", role);
  if (tensor.layout() != at::kStrided)
    refuse("the {} is not dense (a sparse or other layout)", role);
  if (at::isQIntType(tensor.scalar_type()))
    refuse("the {} is quantised ({}), which is not supported", role,
           c10::toString(tensor.scalar_type()));
}

Operand Arguments::input(const at::Tensor& tensor) const {
  plain(tensor, "input");
  if (objection_to(tensor).empty()) return Operand::borrowed(tensor);
  const auto values = tensor._is_zerotensor() ? tensor.detach().clone() : tensor.detach();
  return Operand::owned(values.resolve_conj().resolve_neg().contiguous());
}

void Arguments::output(const at::Tensor& tensor) const {
  plain(tensor, "output");
  if (const auto objection = objection_to(tensor); !objection.empty())
    refuse("the output {}, and copy from it", objection);
}

void Arguments::absent(const at::Tensor& tensor, std::string_view role) const {
  if (tensor.defined()) refuse("the {} must be undefined on ranks that are not the root", role);
}

void Arguments::root(int root) const {
  if (root < 0 || root >= size_) refuse("root {} is not one of the ranks 0..{}", root, size_ - 1);
}

void Arguments::peer(int peer) const {
  if (peer < 0 || peer >= size_) refuse("peer {} is not one of the ranks 0..{}", peer, size_ - 1);
  if (peer == rank_) refuse("the peer is this rank itself; a rank sends nothing to itself");
}

void Arguments::reduces(Op op, at::ScalarType dtype) const {
  bool bits = op == Op::band || op == Op::bor || op == Op::bxor;
  bool linear = op == Op::sum || op == Op::average;
  bool complex = dtype == at::kComplexFloat || dtype == at::kComplexDouble;
  if (op > Op::bxor) refuse("operation number {} does not exist", static_cast<int>(op));
  if (is_integral(dtype) ? op != Op::average : (is_floating(dtype) && !bits) || (complex && linear))
    return;
  refuse("{} is not defined for {}{}", name_of(op), c10::toString(dtype),
         op == Op::average ? "; it takes floating point only" : "");
}

void Arguments::alike(const at::Tensor& output, const at::Tensor& input) const {
  if (output.scalar_type() != input.scalar_type()) {
    refuse("output and input must have one dtype; found {} and {}",
           c10::toString(output.scalar_type()), c10::toString(input.scalar_type()));
  }
  if (output.device() != input.device())
    refuse("output and input must be on one device; found {} and {}", output.device().str(),
           input.device().str());
}

void Arguments::elements(const at::Tensor& tensor, std::string_view role, std::int64_t expected,
                         std::string_view why) const {
  if (tensor.numel() != expected)
    refuse("the {} needs {} elements ({}); it has {}", role, expected, why, tensor.numel());
}

void Arguments::divisible(const at::Tensor& tensor, std::string_view role) const {
  if (tensor.numel() % size_ != 0)
    refuse("the {}'s {} elements do not divide among {} ranks; pass counts", role, tensor.numel(),
           size_);
}

std::int64_t Arguments::counts(std::span<const std::int64_t> counts, std::string_view role) const {
  if (std::ssize(counts) != size_)
    refuse("the {} name {} ranks; the group has {}", role, counts.size(), size_);
  for (auto count : counts) {
    if (count < 0) refuse("the {} hold {}; none may be negative", role, count);
  }
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

void Arguments::kept(std::int64_t sent, std::int64_t received) const {
  if (sent != received)
    refuse("by its counts this rank sends {} elements to itself and receives {} of them", sent,
           received);
}

void Arguments::apart(const at::Tensor& whole, const at::Tensor& part,
                      std::int64_t own_place) const {
  if (!whole.is_alias_of(part) || whole.numel() == 0 || part.numel() == 0) return;
  auto bytes = static_cast<std::int64_t>(whole.element_size());
  auto whole_begin = whole.storage_offset() * bytes;
  auto part_begin = part.storage_offset() * bytes;
  bool separate = part_begin + part.numel() * bytes <= whole_begin ||
                  whole_begin + whole.numel() * bytes <= part_begin;
  if (separate || (own_place >= 0 && part_begin == whole_begin + own_place * bytes)) return;
  refuse("input and output overlap{}", own_place >= 0 ? " other than at this rank's own part" : "");
}

}  // namespace lockstep
