#include "base/check.h"
#include "dispatch/lazy_storage.h"
#include "global/global_tensor.h"
#include "optim/formats_kernel.h"
#include "optim/threads.h"
#include "optim/update_entry.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/optim/clipping.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::optim {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t norm_piece_elements = 1 << 16;

bool is_scanned_here(const at::Tensor& gradient) {
  at::ScalarType dtype = gradient.scalar_type();
  return gradient.device().is_cpu() && gradient.layout() == at::kStrided &&
         gradient.is_non_overlapping_and_dense() &&
         (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16);
}

double sum_of_floats(const float* gradient, std::int64_t count, const ElementTransform& transform) {
  return sum_of_squares(gradient, count, static_cast<float>(transform.factor),
                        static_cast<float>(transform.limit));
}

double sum_of_16_bits(const at::Tensor& gradient, std::int64_t begin, std::int64_t end,
                      const ElementTransform& transform) {
  std::array<float, 1024> buffer;
  auto* bits = static_cast<const std::uint16_t*>(gradient.const_data_ptr());
  double sum = 0;
  for (; begin < end; begin += std::ssize(buffer)) {
    std::int64_t count = std::min(std::ssize(buffer), end - begin);
    widen(gradient.scalar_type(), bits + begin, buffer.data(), count);
    sum += sum_of_floats(buffer.data(), count, transform);
  }
  return sum;
}

// Reading values directly from their source avoids writing them to memory and loading them again.
std::shared_ptr<dispatch::ValueSource> cheap_source_of(const at::Tensor& gradient) {
  if (!is_scanned_here(gradient) || gradient.scalar_type() != at::kFloat) return nullptr;
  auto source = dispatch::source_of(gradient);
  return source && source->bytes_an_element() <= gradient.element_size() ? source : nullptr;
}

// Like the sum for gradients in memory, and bit-identical, for float32 gradients that are not in
// memory.
double sum_of_source(const dispatch::ValueSource& source, std::int64_t begin, std::int64_t count,
                     const ElementTransform& transform) {
  auto buffer = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(count));
  source.read(begin, count, buffer.get());
  return sum_of_floats(buffer.get(), count, transform);
}

// Pieces are added in order, so the bits do not depend on the number of threads.
double scanned_sum_of_squares(const at::Tensor& gradient, const ElementTransform& transform) {
  std::int64_t count = gradient.numel();
  std::vector<double> sums((count + norm_piece_elements - 1) / norm_piece_elements);
  auto source = cheap_source_of(gradient);
  for_each_in_parallel(sums.size(), [&](std::size_t i) {
    std::int64_t begin = static_cast<std::int64_t>(i) * norm_piece_elements;
    std::int64_t end = std::min(begin + norm_piece_elements, count);
    if (source)
      sums[i] = sum_of_source(*source, gradient.storage_offset() + begin, end - begin, transform);
    else if (gradient.scalar_type() == at::kFloat)
      sums[i] = sum_of_floats(gradient.const_data_ptr<float>() + begin, end - begin, transform);
    else
      sums[i] = sum_of_16_bits(gradient, begin, end, transform);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Returns the stored elements as a dense tensor.
at::Tensor stored_values(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient.coalesce().values() : dispatch::values_of(gradient);
}

// Returns a gradient's number, see GradientNumbers, as a tensor without dims. Computes in float64
// for every dtype of the gradient; values are converted before any arithmetic.
at::Tensor widened_number(const at::Tensor& gradient, const ElementTransform& transform,
                          double norm_type) {
  at::Tensor values = stored_values(gradient);
  if (values.numel() == 0) return at::zeros({}, values.options().dtype(at::kDouble));  // sparse
  values =
      values.to(values.is_complex() ? at::kComplexDouble : at::kDouble).abs() * transform.factor;
  if (std::isfinite(transform.limit)) values.clamp_max_(transform.limit);
  return norm_type == infinity ? values.max() : values.pow_(norm_type).sum();
}

// A number for each gradient: the sum of |g|^norm_type over its elements, or the largest |g| if
// norm_type is infinity; 0 without a gradient. The host fetches the numbers of all gradients on
// devices together, and waits once.
class GradientNumbers {
 public:
  GradientNumbers(std::size_t count, const ElementTransform& transform, double norm_type)
      : transform_(transform), norm_type_(norm_type), numbers_(count) {}

  void put(std::size_t i, double number) { numbers_[i] = number; }

  // The gradient must be in memory, unless cheap_source_of() has a source for norm_type 2.
  void compute(std::size_t i, const at::Tensor& gradient) {
    if (gradient.numel() == 0) return;
    if (norm_type_ == 2 && is_scanned_here(gradient))
      return put(i, scanned_sum_of_squares(gradient, transform_));
    if (has_common_kernel(gradient)) {
      together_.emplace_back(i, stored_values(gradient));
      return;
    }
    at::Tensor number = widened_number(gradient, transform_, norm_type_);
    if (number.is_cpu()) return put(i, number.item<double>());
    alone_.emplace_back(i, std::move(number));
  }

  [[nodiscard]] std::vector<double> fetch() {
    std::vector<at::Tensor> waiting;
    for (const auto& [place, gradient] : together_) waiting.push_back(gradient);
    if (!waiting.empty()) waiting = at::_foreach_norm(waiting, norm_type_, at::kDouble);
    for (const auto& [place, number] : alone_) waiting.push_back(number);
    if (waiting.empty()) return numbers_;
    for (at::Tensor& each : waiting)
      each = each.to(waiting.front().device(), /*non_blocking=*/true);
    const at::Tensor fetched = at::stack(waiting).cpu();
    const double* next = fetched.const_data_ptr<double>();
    for (const auto& [place, gradient] : together_) {
      const double norm = *next++ * transform_.factor;
      put(place, norm_type_ == 2 ? norm * norm : norm);
    }
    for (const auto& [place, number] : alone_) put(place, *next++);
    return numbers_;
  }

 private:
  using Places = std::vector<std::pair<std::size_t, at::Tensor>>;

  // True if LibTorch has few kernels for the norms of many gradients on a device.
  [[nodiscard]] bool has_common_kernel(const at::Tensor& gradient) const {
    return (norm_type_ == 1 || norm_type_ == 2 || norm_type_ == infinity) &&
           !gradient.device().is_cpu() && gradient.layout() == at::kStrided &&
           gradient.is_floating_point() && std::isinf(transform_.limit);
  }

  const ElementTransform transform_;
  const double norm_type_;
  std::vector<double> numbers_;
  Places together_;  // gradients on devices
  Places alone_;     // numbers on devices
};

// Returns the greater number. std::max would drop a NaN.
double greater(double a, double b) { return a > b || std::isnan(a) ? a : b; }

double norm_of(double part, double norm_type) {
  if (norm_type == infinity) return part;
  return norm_type == 2 ? std::sqrt(part) : std::pow(part, 1 / norm_type);
}

void bring(const at::Tensor& gradient) {
  dispatch::bring(gradient, "norm of gradients", /*writes=*/false);
}

// Combines numbers of this rank with those of the ranks that have the other parts. Shard groups are
// combined in the order of their first add(), which is the same on all ranks.
class CombinedNumber {
 public:
  explicit CombinedNumber(bool largest) : largest_(largest) {}

  // Adds the `number` of the gradient of `parameter`. The gradient of a part may itself be a part.
  void add(const at::Tensor& parameter, double number) {
    auto shard_group = shard_group_of(parameter);
    if (!shard_group) return put(whole_, number);
    auto found = std::ranges::find(divided_, shard_group, &Divided::ranks);
    if (found == divided_.end()) found = divided_.insert(found, {shard_group, 0});
    put(found->number, number);
  }

  // Joins the collective for a part without a gradient, because the ranks with the other parts may
  // have gradients (if this rank's pipeline stage has no parameters, or only frozen ones).
  void take_part(const at::Tensor& parameter) {
    if (dispatch::shard_group_of(parameter)) add(parameter, 0);
  }

  [[nodiscard]] double of_all_ranks() const {
    double all = whole_;
    std::vector<Divided> divided = divided_;
    // A rank's own parameters (ShardOptions::ignored) may overflow on one rank alone, and all ranks
    // must skip the step. If all ranks have the parameters, the number is counted several times,
    // which changes neither a maximum nor a number that is not finite.
    if (!divided.empty() && (largest_ || !std::isfinite(whole_))) put(divided[0].number, whole_);
    // The ranks of a pipeline may have different numbers of shard groups, all with the same last
    // ranks.
    std::vector<Divided> last;
    for (const auto& [ranks, number] : divided) {
      const double inside = largest_ ? ranks->largest_inside(number) : ranks->sum_inside(number);
      auto found = std::ranges::find(last, ranks->last_ranks(),
                                     [](const Divided& one) { return one.ranks->last_ranks(); });
      if (found == last.end()) found = last.insert(found, {ranks, 0});
      put(found->number, inside);
    }
    for (const auto& [ranks, number] : last)
      put(all, largest_ ? ranks->largest_over_last(number) : ranks->sum_over_last(number));
    return all;
  }

 private:
  struct Divided {
    std::shared_ptr<ShardGroup> ranks;
    double number = 0;
  };
  // Returns null if the parameter is whole on this rank.
  std::shared_ptr<ShardGroup> shard_group_of(const at::Tensor& parameter) {
    auto ranks = dispatch::shard_group_of(parameter);
    if (!ranks) ranks = dispatch::shard_group_of(parameter.grad());
    if (ranks) return ranks;
    std::vector<Group> groups = global::groups_that_cut(parameter.grad());
    if (groups.empty()) return {};
    std::vector<std::string> names;
    for (const Group& group : groups) names.push_back(group.name());
    auto& shard_group = of_meshes_[names];
    if (shard_group) return shard_group;
    for (const Group& each : groups) {
      auto group = std::make_shared<Group>(each);
      shard_group = shard_group ? std::make_shared<ShardGroup>(shard_group, std::move(group))
                                : std::make_shared<ShardGroup>(std::move(group));
    }
    return shard_group;
  }
  void put(double& to, double number) const { to = largest_ ? greater(to, number) : to + number; }

  bool largest_;
  double whole_ = 0;  // from gradients that are whole on this rank
  std::vector<Divided> divided_;
  // The groups of global tensors, by the names of the groups that shard them.
  std::map<std::vector<std::string>, std::shared_ptr<ShardGroup>> of_meshes_;
};

// Throws InvalidArgument before any collective.
void check_norm(std::span<const at::Tensor> parameters, double norm_type) {
  constexpr const char* what = "norm of gradients";
  check(norm_type >= 0, "{}: expected a norm type of 0 or more, found {}", what, norm_type);
  check_listed_once(parameters, what);
  if (norm_type > 0) return;
  const auto is_divided = [](const at::Tensor& parameter) {
    auto ranks = dispatch::shard_group_of(parameter);
    if (!ranks && parameter.grad().defined()) ranks = dispatch::shard_group_of(parameter.grad());
    return ranks && ranks->size() > 1;
  };
  check(std::ranges::none_of(parameters, is_divided),
        "{}: expected a norm type above 0, found 0, which counts the tensors of one rank, and "
        "parameters that are divided over several ranks",
        what);
}

// Returns the sum of the numbers of all ranks' gradients, or the largest one.
double over_all_ranks(std::span<const at::Tensor> parameters, const std::vector<double>& numbers,
                      bool largest) {
  CombinedNumber combined(largest);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].grad().defined())
      combined.add(parameters[i], numbers[i]);
    else
      combined.take_part(parameters[i]);
  return combined.of_all_ranks();
}

}  // namespace

double transformed_norm(std::span<const at::Tensor> parameters, const ElementTransform& transform,
                        double norm_type) {
  check_norm(parameters, norm_type);
  GradientNumbers numbers(parameters.size(), transform, norm_type);
  double tensors = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined()) continue;
    ++tensors;
    global::settle_gradient(parameters[i]);
    if (norm_type == 0) {
      if (!dispatch::source_of(parameters[i].grad()))
        bring(parameters[i].grad());  // throws if there is no gradient yet
      continue;
    }
    const at::Tensor gradient = global::local_values(parameters[i].grad());
    if (norm_type != 2 || !cheap_source_of(gradient)) bring(gradient);
    numbers.compute(i, gradient);
  }
  if (norm_type == 0) return tensors;
  return norm_of(over_all_ranks(parameters, numbers.fetch(), norm_type == infinity), norm_type);
}

bool all_finite(std::span<const at::Tensor> parameters) {
  GradientNumbers numbers(parameters.size(), {}, infinity);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined()) continue;
    global::settle_gradient(parameters[i]);
    const at::Tensor gradient = global::local_values(parameters[i].grad());
    if (!cheap_source_of(gradient)) bring(gradient);
    if (is_scanned_here(gradient))
      numbers.put(i, scanned_sum_of_squares(gradient, {}));  // faster, and finite alike
    else
      numbers.compute(i, gradient);
  }
  std::vector<double> is_bad = numbers.fetch();
  for (double& number : is_bad) number = std::isfinite(number) ? 0 : 1;
  return over_all_ranks(parameters, is_bad, /*largest=*/true) == 0;
}

double gradient_norm(std::span<const at::Tensor> parameters, double norm_type) {
  return transformed_norm(parameters, {}, norm_type);
}

double clip_factor(double norm, double max_norm) {
  double factor = max_norm / (norm + 1e-6);
  return factor > 1 ? 1 : factor;
}

double clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm, double norm_type) {
  check(max_norm >= 0, "clipping gradients: expected a largest norm of 0 or more, found {}",
        max_norm);
  double norm = gradient_norm(parameters, norm_type);
  // A NaN norm makes the gradients NaN, as in torch.
  multiply_gradients(parameters, clip_factor(norm, max_norm));
  return norm;
}

void clip_grad_value(std::span<const at::Tensor> parameters, double largest) {
  check(largest >= 0, "clipping gradients: expected a largest value of 0 or more, found {}",
        largest);
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined()) parameter.mutable_grad().clamp_(-largest, largest);
}

}  // namespace lockstep::optim
