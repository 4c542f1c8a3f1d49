#include "train/tasks/mnist.h"

#include <lockstep/data/images.h>
#include <lockstep/models/conv_net.h>

#include <ATen/Functions.h>

namespace lockstep::train {

Options MnistTask::defaults() const {
  Options options;
  options.steps = 0;
  options.epochs = 10;
  options.batch = 64;
  options.optimizer = OptimizerKind::sgd;
  options.lr = 0.01;
  options.momentum = 0.9;
  options.schedule = ScheduleKind::step;
  options.step.gamma = 0.7;
  return options;
}

void MnistTask::declare(Settings& settings) {
  settings.add({.name = "data", .help = "folder of the four IDX files", .is_path = true}, data_);
}

data::Images MnistTask::read(const std::string& folder, bool is_training) const {
  return data::mnist(folder,
                     {.part = is_training ? data::MnistPart::train : data::MnistPart::test});
}

// The scores are log probabilities.
ImagesTask::Network MnistTask::make_network() const {
  models::ConvNet model;
  return {model.ptr(),
          [model](const at::Tensor& images) mutable { return model->forward(images); }};
}

at::Tensor MnistTask::loss_of(const at::Tensor& scores, const at::Tensor& target,
                              std::int64_t reduction) const {
  return at::nll_loss(scores, target, {}, reduction);
}

}  // namespace lockstep::train
