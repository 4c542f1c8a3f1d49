#include "data/bigram.h"

#include "base/check.h"

#include <cmath>
#include <unordered_map>
#include <vector>

namespace lockstep::data {
namespace {

std::vector<std::int64_t> checked(const at::Tensor& tokens, std::int64_t vocabulary,
                                  const char* name) {
  check(tokens.dim() == 1 && !tokens.is_floating_point(),
        "bigram_cross_entropy: expected {} to be integers of one dim, found {} [{}]", name,
        c10::toString(tokens.scalar_type()), listed(tokens.sizes(), ", "));
  const at::Tensor wide = tokens.to(at::kLong).contiguous();
  const auto* begin = wide.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> values(begin, begin + wide.numel());
  for (std::int64_t value : values)
    check(value >= 0 && value < vocabulary,
          "bigram_cross_entropy: expected tokens below {}, found {}", vocabulary, value);
  return values;
}

}  // namespace

double bigram_cross_entropy(const at::Tensor& train, const at::Tensor& validation,
                            std::int64_t vocabulary, double smoothing) {
  const std::vector<std::int64_t> seen = checked(train, vocabulary, "train");
  const std::vector<std::int64_t> tested = checked(validation, vocabulary, "validation");
  check(
      tested.size() >= 2 && smoothing > 0,
      "bigram_cross_entropy: expected at least two validation tokens and smoothing above 0, found "
      "{} and {}",
      tested.size(), smoothing);
  std::unordered_map<std::int64_t, std::int64_t> pairs;
  std::vector<std::int64_t> firsts(static_cast<std::size_t>(vocabulary));
  for (std::size_t i = 0; i + 1 < seen.size(); ++i) {
    ++pairs[seen[i] * vocabulary + seen[i + 1]];
    ++firsts[static_cast<std::size_t>(seen[i])];
  }
  const double spread = smoothing * static_cast<double>(vocabulary);
  double total = 0;
  for (std::size_t i = 0; i + 1 < tested.size(); ++i) {
    const auto pair = pairs.find(tested[i] * vocabulary + tested[i + 1]);
    const double count = pair == pairs.end() ? 0.0 : static_cast<double>(pair->second);
    const auto first = static_cast<double>(firsts[static_cast<std::size_t>(tested[i])]);
    total -= std::log((count + smoothing) / (first + spread));
  }
  return total / static_cast<double>(tested.size() - 1);
}

}  // namespace lockstep::data
