#include "train/tasks/images.h"

#include "base/check.h"
#include "train/tasks/known.h"

#include <lockstep/data/images.h>
#include <lockstep/models/conv_net.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

namespace lockstep::train {
namespace {

constexpr std::int64_t classes = 10;
constexpr double usual_width = 64;
constexpr double usual_parameters = 11.17e6;
constexpr double usual_activations = 1.2e6;  // values per image that backward() needs

// Augments images as in He et al. (2015), section 4.2: pads with zeros, crops at a random place,
// and may mirror. `draws` [rows, 3] has the row, the column, and whether to mirror.
at::Tensor augmented(const at::Tensor& images, const at::Tensor& draws, std::int64_t margin) {
  const std::int64_t rows = images.size(0), side = images.size(2);
  const at::Tensor padded = at::constant_pad_nd(images, {margin, margin, margin, margin});
  const at::Tensor along = at::arange(side, at::kLong).unsqueeze(0);
  const at::Tensor mirrored = draws.select(1, 2).unsqueeze(1).to(at::kBool);
  const at::Tensor y = draws.select(1, 0).unsqueeze(1) + along;
  const at::Tensor x =
      draws.select(1, 1).unsqueeze(1) + at::where(mirrored, side - 1 - along, along);
  const at::Tensor row = at::arange(rows, at::kLong).view({rows, 1, 1});
  // Advanced indices on both sides of a dim would move it, so channels come last here.
  return padded.permute({0, 2, 3, 1})
      .index({row, y.unsqueeze(2), x.unsqueeze(1)})
      .permute({0, 3, 1, 2})
      .contiguous();
}

}  // namespace

void ImagesTask::check() const {
  check_input(!data_.empty(), "--data is missing: name a file or folder to learn from");
}

data::Images ImagesTask::read_own() {
  data::Images training = read(data_, true);
  read_validation(data_);
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
    read_validation(data);
}

void ImagesTask::read_validation(const std::string& folder) {
  validation_ = read(folder, false);
  check_input(validation_->size() > 0, "{}: expected images to validate with, found none", folder);
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

Options CifarTask::defaults() const {
  Options options;
  options.steps = 0;
  options.epochs = 30;
  options.batch = 128;
  options.optimizer = OptimizerKind::sgd;
  options.lr = 0.1;
  options.momentum = 0.9;
  options.weight_decay = 5e-4;
  options.schedule = ScheduleKind::cosine;
  return options;
}

void CifarTask::declare(Settings& settings) {
  constexpr double most_width = 1 << 12;
  settings.add({.name = "data",
                .help = "folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin",
                .is_path = true},
               data_);
  settings.add(shape_size("width", "channels of the first stage", most_width), width_);
  settings.add({.name = "augment", .help = "training images are moved and mirrored at random"},
               augments_);
}

data::Images CifarTask::read(const std::string& folder, bool is_training) const {
  return data::cifar10(folder,
                       {.part = is_training ? data::CifarPart::train : data::CifarPart::test});
}

double CifarTask::parameters() const {
  const double of_usual = static_cast<double>(width_) / usual_width;
  return usual_parameters * of_usual * of_usual;
}

double CifarTask::activations() const {
  const double rows =
      static_cast<double>(options_.batch) / static_cast<double>(ranks_ * options_.accumulate);
  return rows * usual_activations * static_cast<double>(width_) / usual_width;
}

ImagesTask::Network CifarTask::make_network() const {
  models::ResNet18 model(
      models::ResNetOptions{.classes = classes, .cifar_stem = true, .width = width_});
  return {model.ptr(),
          [model](const at::Tensor& images) mutable { return model->forward(images); }};
}

at::Tensor CifarTask::loss_of(const at::Tensor& scores, const at::Tensor& target,
                              std::int64_t reduction) const {
  return at::cross_entropy_loss(scores, target, {}, reduction);
}

Batch CifarTask::batch(std::int64_t step) {
  Batch batch = ImagesTask::batch(step);
  if (!augments_ || !batch.data.defined()) return batch;
  constexpr std::int64_t margin = 4;
  at::Generator generator = at::detail::createCPUGenerator(stream_seed(options_.seed, step));
  const at::Tensor places = at::randint(2 * margin + 1, {options_.batch, 2}, generator, at::kLong);
  const at::Tensor mirrors = at::randint(2, {options_.batch, 1}, generator, at::kLong);
  // This rank's row i is row i * ranks + rank of the global batch.
  const at::Tensor own = at::arange(batch.data.size(0), at::kLong) * ranks_ + rank_;
  batch.data = augmented(batch.data, at::cat({places, mirrors}, 1).index_select(0, own), margin);
  return batch;
}

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
