#include "train/tasks/mnist.h"

#include "base/check.h"
#include "train/data_fingerprint.h"

#include <lockstep/data/mnist.h>

#include <ATen/Functions.h>

namespace lockstep::train {
namespace {

// Logarithms of probabilities, in float32 whatever the model computes in.
at::Tensor digits_of(models::ConvNet model, const Batch& batch) {
  return model->forward(batch.data).to(at::kFloat);
}

}  // namespace

Options MnistTask::defaults() const {
  Options options;
  options.steps = 0;
  options.epochs = 10;
  options.batch = 64;
  options.optimizer = "sgd";
  options.lr = 0.01;
  options.momentum = 0.9;
  options.schedule = "step";
  options.gamma = 0.7;
  return options;
}

void MnistTask::declare(Settings& settings) {
  settings.add({.name = "data", .help = "folder of the four IDX files", .is_path = true}, data_);
}

void MnistTask::check() const {
  check_input(!data_.empty(), "--data is missing: name a file or folder to learn from");
}

data::Images MnistTask::read_own() {
  data::Images training = data::mnist(data_, {.part = data::MnistPart::train});
  validation_ = data::mnist(data_, {.part = data::MnistPart::test});
  fingerprint_ = fingerprint_of_tensors(
      {training.pixels(), training.labels(), validation_->pixels(), validation_->labels()});
  return training;
}

void MnistTask::load(const Options& options, const Group& group) {
  batches_.emplace(read_own(), options, group);
}

void MnistTask::load_validation(const Options&, const Group&, const std::string& data) {
  if (data.empty())
    (void)read_own();
  else
    validation_ = data::mnist(data, {.part = data::MnistPart::test});
}

std::shared_ptr<torch::nn::Module> MnistTask::make_model() {
  model_ = models::ConvNet();
  return model_.ptr();
}

Replica MnistTask::make_replica() const {
  models::ConvNet model;
  return {model.ptr(), [model](const Batch& batch) {
            return at::nll_loss(digits_of(model, batch), batch.target);
          }};
}

at::Tensor MnistTask::loss(const Batch& batch) {
  return at::nll_loss(digits_of(model_, batch), batch.target);
}

std::int64_t MnistTask::validation_samples() const {
  return static_cast<std::int64_t>(*validation_->size());
}

Batch MnistTask::validation(std::span<const std::size_t> samples) {
  return validation_->get_batch({samples.data(), samples.size()});
}

Totals MnistTask::measure(const Batch& batch) {
  at::Tensor likely = digits_of(model_, batch);
  return {.loss = at::nll_loss(likely, batch.target, {}, at::Reduction::Sum).item<double>(),
          .targets = static_cast<double>(batch.data.size(0)),
          .correct = likely.argmax(1).eq(batch.target).sum().item<double>()};
}

}  // namespace lockstep::train
