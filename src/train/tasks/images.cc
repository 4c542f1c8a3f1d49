#include "train/tasks/images.h"

#include "base/check.h"

#include <ATen/Functions.h>

namespace lockstep::train {

void ImagesTask::check() const {
  check_input(!data_.empty(), "--data is missing: name a file or folder to learn from");
}

data::Images ImagesTask::read_own() {
  data::Images training = read(data_, true);
  validation_ = read(data_, false);
  fingerprint_ = fingerprint_of_tensors(
      {training.pixels(), training.labels(), validation_->pixels(), validation_->labels()});
  return training;
}

void ImagesTask::load(const Options& options, const Group& group) {
  options_ = options;
  rank_ = group.rank();
  ranks_ = group.size();
  batches_.emplace(read_own(), options, group);
}

void ImagesTask::load_validation(const Options&, const Group&, const std::string& data) {
  if (data.empty())
    (void)read_own();
  else
    validation_ = read(data, false);
}

std::shared_ptr<torch::nn::Module> ImagesTask::make_model() {
  network_ = make_network();
  return network_.module;
}

// The task must outlive its replicas.
Replica ImagesTask::make_replica() const {
  const Network network = make_network();
  return {network.module, [this, network](const Batch& batch) {
            return loss_of(network.scores(batch.data).to(at::kFloat), batch.target,
                           at::Reduction::Mean);
          }};
}

at::Tensor ImagesTask::loss(const Batch& batch) {
  return loss_of(network_.scores(batch.data).to(at::kFloat), batch.target, at::Reduction::Mean);
}

std::int64_t ImagesTask::validation_samples() const {
  return static_cast<std::int64_t>(*validation_->size());
}

Batch ImagesTask::validation(std::span<const std::size_t> samples) {
  return validation_->get_batch({samples.data(), samples.size()});
}

Totals ImagesTask::measure(const Batch& batch) {
  const at::Tensor scores = network_.scores(batch.data).to(at::kFloat);
  return {.loss = loss_of(scores, batch.target, at::Reduction::Sum).item<double>(),
          .targets = static_cast<double>(batch.data.size(0)),
          .correct = scores.argmax(1).eq(batch.target).sum().item<double>()};
}

}  // namespace lockstep::train
