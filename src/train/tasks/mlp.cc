#include "train/tasks/mlp.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/text.h"
#include "train/tasks/known.h"

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

at::Tensor loss_of(models::Mlp model, const Batch& batch) {
  return at::mse_loss(model->forward(batch.data).to(batch.target.scalar_type()), batch.target);
}

}  // namespace

torch::data::Example<> Rows::get_batch(c10::ArrayRef<std::size_t> indices) {
  std::vector<std::int64_t> numbers(indices.begin(), indices.end());
  at::Tensor index = at::tensor(numbers, at::kLong);
  return {all_.data.index_select(0, index), all_.target.index_select(0, index)};
}

Options MlpTask::defaults() const {
  Options options;
  options.steps = 500;
  options.batch = 32;
  options.lr = 1e-3;
  return options;
}

void MlpTask::declare(Settings& settings) {
  constexpr double most_layers = 10'000, most_width = 1 << 20;
  settings.add(shape_size("layers", "linear layers", most_layers), layers_);
  settings.add(shape_size("width", "features between layers", most_width), width_);
}

checkpoint::Metadata MlpTask::description() const { return {{"seed", std::to_string(seed_)}}; }

void MlpTask::restore(const checkpoint::Metadata& description) {
  auto found = description.find("seed");
  check_input(found != description.end(), "expected an entry 'seed', found none");
  std::optional<std::int64_t> seed = parse_integer(found->second);
  check_input(seed && *seed >= 0, "seed: expected an integer of at least 0, found '{}'",
              escaped(found->second));
  seed_ = *seed;
}

MlpTask::Data MlpTask::make_data() const {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed_));
  at::Tensor in = at::randn({inputs, hidden}, generator) / std::sqrt(static_cast<double>(inputs));
  at::Tensor out = at::randn({hidden, 1}, generator) / std::sqrt(static_cast<double>(hidden));
  auto make = [&](std::int64_t rows) {
    at::Tensor data = at::randn({rows, inputs}, generator);
    return Rows({data, at::tanh(data.matmul(in)).matmul(out)});
  };
  Rows training = make(training_rows);
  return {std::move(training), make(validation_rows)};
}

void MlpTask::load(const Options& options, const Group& group) {
  seed_ = options.seed;
  rows_ = static_cast<double>(std::min(options.batch, training_rows)) /
          static_cast<double>(group.size() * options.accumulate);
  Data all = make_data();
  batches_.emplace(std::move(all.training), options, group);
  validation_ = std::move(all.validation);
}

void MlpTask::load_validation(const Options&, const Group&, const std::string& data) {
  check_input(data.empty(), "{}: the task mlp makes its own data and reads none", data);
  validation_ = make_data().validation;
}

std::vector<std::int64_t> MlpTask::sizes() const {
  std::vector<std::int64_t> sizes(layers_ + 1, width_);
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
  // The output of each hidden layer, and the gradient of the last layer, if it has one.
  bool has_hidden = layers_ > 1;
  return rows_ * static_cast<double>(width_) * (has_hidden ? static_cast<double>(layers_) : 0);
}

std::shared_ptr<torch::nn::Module> MlpTask::make_model() {
  model_ = models::Mlp(models::MlpOptions{.sizes = sizes()});
  return model_.ptr();
}

Replica MlpTask::make_replica() const {
  models::Mlp model(models::MlpOptions{.sizes = sizes()});
  return {model.ptr(), [model](const Batch& batch) { return loss_of(model, batch); }};
}

at::Tensor MlpTask::loss(const Batch& batch) { return loss_of(model_, batch); }

}  // namespace lockstep::train
