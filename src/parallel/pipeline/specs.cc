#include "parallel/pipeline/specs.h"

#include "base/check.h"
#include "base/text.h"

#include <ATen/ops/zeros.h>

namespace lockstep::pipeline {
namespace {

constexpr std::int64_t most_dims = 32;

}  // namespace

Specs specs_of(const Tensors& tensors) {
  Specs specs;
  for (const at::Tensor& tensor : tensors)
    specs.push_back({tensor.scalar_type(), tensor.requires_grad(), tensor.sizes().vec()});
  return specs;
}

std::string describe(const Specs& specs) {
  std::vector<std::string> parts;
  for (const TensorMeta& spec : specs)
    parts.push_back(formatted("{} [{}]", c10::toString(spec.dtype), listed(spec.sizes, ", ")));
  return parts.empty() ? "nothing" : join(parts);
}

at::Tensor message_of(const Specs& specs, const std::string& of) {
  std::vector<std::int64_t> numbers{static_cast<std::int64_t>(specs.size())};
  for (const TensorMeta& spec : specs) {
    numbers.push_back(static_cast<std::int64_t>(spec.dtype));
    numbers.push_back(spec.requires_grad ? 1 : 0);
    numbers.push_back(static_cast<std::int64_t>(spec.sizes.size()));
    numbers.insert(numbers.end(), spec.sizes.begin(), spec.sizes.end());
  }
  check(static_cast<std::int64_t>(numbers.size()) <= spec_numbers,
        "{}: expected tensors that {} numbers describe, found {}", of, spec_numbers,
        describe(specs));
  at::Tensor message = at::zeros({spec_numbers}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), message.mutable_data_ptr<std::int64_t>());
  return message;
}

Specs specs_in(const at::Tensor& message, const std::string& of) {
  const std::int64_t* numbers = message.const_data_ptr<std::int64_t>();
  std::int64_t at = 0;
  const auto next = [&](std::int64_t least, std::int64_t most) {
    const std::int64_t number = at < spec_numbers ? numbers[at++] : -1;
    if (number < least || number > most)
      throw Mismatch(
          formatted("{}: expected a description of tensors, found number {}", of, number));
    return number;
  };
  constexpr std::int64_t most = std::int64_t{1} << 48;
  Specs specs(static_cast<std::size_t>(next(0, spec_numbers)));
  for (TensorMeta& spec : specs) {
    spec.dtype = static_cast<at::ScalarType>(
        next(0, static_cast<std::int64_t>(at::ScalarType::NumOptions) - 1));
    spec.requires_grad = next(0, 1) == 1;
    spec.sizes.resize(static_cast<std::size_t>(next(0, most_dims)));
    for (std::int64_t& size : spec.sizes) size = next(0, most);
  }
  return specs;
}

}  // namespace lockstep::pipeline
