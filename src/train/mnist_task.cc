#include "train/mnist_task.h"

#include "train/data_fingerprint.h"

#include <lockstep/data/mnist.h>

#include <ATen/Functions.h>

namespace lockstep::train {

data::Images MnistTask::read_own() {
  data::Images training = data::mnist(options_.data, {.part = data::MnistPart::train});
  validation_ = data::mnist(options_.data, {.part = data::MnistPart::test});
  fingerprint_ = fingerprint_of_tensors(
      {training.pixels(), training.labels(), validation_->pixels(), validation_->labels()});
  return training;
}

void MnistTask::load(const std::string&) { batches_.emplace(read_own(), options_, group_); }

void MnistTask::load_validation(const std::string&, const std::string& file) {
  if (file.empty())
    (void)read_own();
  else
    validation_ = data::mnist(file, {.part = data::MnistPart::test});
}

at::Tensor MnistTask::loss(const Batch& batch) {
  return at::nll_loss(model_->forward(batch.data), batch.target);
}

std::int64_t MnistTask::validation_samples() const {
  return static_cast<std::int64_t>(*validation_->size());
}

Totals MnistTask::measure(std::span<const std::size_t> samples) {
  Batch batch = validation_->get_batch({samples.data(), samples.size()});
  at::Tensor output = model_->forward(batch.data);
  return {.loss = at::nll_loss(output, batch.target, {}, at::Reduction::Sum).item<double>(),
          .targets = static_cast<double>(samples.size()),
          .correct = output.argmax(1).eq(batch.target).sum().item<double>()};
}

}  // namespace lockstep::train
