#include "train/mlp_task.h"

#include "base/check.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

namespace lockstep::train {
namespace {

constexpr std::int64_t inputs = 16;
constexpr std::int64_t hidden = 32;
constexpr std::int64_t training_rows = 4096;
constexpr std::int64_t validation_rows = 1000;

}  // namespace

Batch Rows::get_batch(c10::ArrayRef<std::size_t> indices) {
  std::vector<std::int64_t> numbers(indices.begin(), indices.end());
  at::Tensor index = at::tensor(numbers, at::kLong);
  return {all_.data.index_select(0, index), all_.target.index_select(0, index)};
}

MlpTask::Data MlpTask::make_data() const {
  at::Generator generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(options_.seed));
  at::Tensor in = at::randn({inputs, hidden}, generator) / std::sqrt(static_cast<double>(inputs));
  at::Tensor out = at::randn({hidden, 1}, generator) / std::sqrt(static_cast<double>(hidden));
  auto make = [&](std::int64_t rows) {
    at::Tensor data = at::randn({rows, inputs}, generator);
    return Rows(Batch{data, at::tanh(data.matmul(in)).matmul(out)});
  };
  Rows training = make(training_rows);
  return {std::move(training), make(validation_rows)};
}

void MlpTask::load(const std::string&) {
  Data all = make_data();
  batches_.emplace(std::move(all.training), options_, group_);
  validation_ = std::move(all.validation);
}

void MlpTask::load_validation(const std::string&, const std::string& file) {
  check_input(file.empty(), "{}: the task mlp makes its own data and reads none", file);
  validation_ = make_data().validation;
}

std::vector<std::int64_t> MlpTask::sizes() const {
  std::vector<std::int64_t> sizes(options_.layers + 1, options_.width);
  sizes.front() = inputs;
  sizes.back() = 1;
  return sizes;
}

double MlpTask::parameters() const {
  double sum = 0;
  const std::vector<std::int64_t> all = sizes();
  for (std::size_t layer = 1; layer < all.size(); ++layer)
    sum += static_cast<double>(all[layer - 1] + 1) * static_cast<double>(all[layer]);
  return sum;
}

double MlpTask::activations() const {
  auto rows = static_cast<double>(std::min(options_.batch, training_rows)) /
              static_cast<double>(group_.size() * options_.accumulate);
  // Each hidden layer's output, and while the last of them has one, its gradient.
  bool has_hidden = options_.layers > 1;
  return rows * static_cast<double>(options_.width) *
         (has_hidden ? static_cast<double>(options_.layers) : 0);
}

void MlpTask::make_model() { model_ = models::Mlp(models::MlpOptions{.sizes = sizes()}); }

at::Tensor MlpTask::loss(const Batch& batch) {
  return at::mse_loss(model_->forward(batch.data), batch.target);
}

Totals MlpTask::measure(std::span<const std::size_t> samples) {
  Batch batch = validation_->get_batch({samples.data(), samples.size()});
  at::Tensor output = model_->forward(batch.data);
  return {.loss = at::mse_loss(output, batch.target, at::Reduction::Sum).item<double>(),
          .targets = static_cast<double>(samples.size())};
}

}  // namespace lockstep::train
