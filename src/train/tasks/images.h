// Image classification: the part that all data sets and networks share.
#pragma once

#include <lockstep/data/images.h>
#include <lockstep/models/resnet.h>
#include <lockstep/train/epoch_batches.h>
#include <lockstep/train/task.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace lockstep::train {

class ImagesTask : public Task {
 public:
  void check() const override;
  void load(const Options& options, const Group& group) override;
  void load_validation(const Options& options, const Group& group,
                       const std::string& data) override;
  [[nodiscard]] std::string data_fingerprint() override { return fingerprint_; }
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override;
  [[nodiscard]] Replica make_replica() const override;

  [[nodiscard]] std::int64_t steps_per_epoch() const override {
    return batches_->steps_per_epoch();
  }
  [[nodiscard]] Batch batch(std::int64_t step) override { return batches_->batch(step); }
  [[nodiscard]] at::Tensor loss(const Batch& batch) override;
  [[nodiscard]] std::int64_t validation_samples() const override;
  [[nodiscard]] Batch validation(std::span<const std::size_t> samples) override;
  [[nodiscard]] std::int64_t evaluation_rows() const override { return 250; }
  [[nodiscard]] Totals measure(const Batch& batch) override;
  [[nodiscard]] bool has_accuracy() const override { return true; }

 protected:
  // A module, and a function from images to scores: one per kind, the largest for the most likely
  // kind.
  struct Network {
    std::shared_ptr<torch::nn::Module> module;
    std::function<at::Tensor(const at::Tensor& images)> scores;
  };
  // Reads the training or validation part of a folder.
  [[nodiscard]] virtual data::Images read(const std::string& folder, bool is_training) const = 0;
  [[nodiscard]] virtual Network make_network() const = 0;
  // Returns the loss of float32 scores; `reduction` is a value of at::Reduction.
  [[nodiscard]] virtual at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& target,
                                           std::int64_t reduction) const = 0;

  std::string data_;
  Options options_;
  int rank_ = 0;
  int ranks_ = 1;

 private:
  // Sets validation data and fingerprint, and returns the training data.
  [[nodiscard]] data::Images read_own();
  void read_validation(const std::string& folder);

  std::string fingerprint_;
  std::optional<data::Images> validation_;
  std::optional<EpochBatches<data::Images>> batches_;
  Network network_;
};

// Classification of small photographs of ten kinds: CIFAR-10 with ResNet-18.
class CifarTask : public ImagesTask {
 public:
  [[nodiscard]] std::string name() const override { return "cifar"; }
  [[nodiscard]] Options defaults() const override;
  void declare(Settings& settings) override;

  [[nodiscard]] double parameters() const override;
  [[nodiscard]] double activations() const override;
  [[nodiscard]] ParallelPlan parallel_plan() const override {
    return {.blocks = {"layer1.*", "layer2.*", "layer3.*", "layer4.*"}};
  }

  // With --augment, each image is shifted by up to 4 pixels in both directions and may be mirrored.
  // The random numbers come from a generator per step, so they are equal for any number of ranks.
  [[nodiscard]] Batch batch(std::int64_t step) override;

 private:
  [[nodiscard]] data::Images read(const std::string& folder, bool is_training) const override;
  [[nodiscard]] Network make_network() const override;
  [[nodiscard]] at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& target,
                                   std::int64_t reduction) const override;

  std::int64_t width_ = 64;
  bool augments_ = true;
};

// Classification of handwritten digits with the network of PyTorch's C++ MNIST example.
class MnistTask : public ImagesTask {
 public:
  [[nodiscard]] std::string name() const override { return "mnist"; }
  [[nodiscard]] Options defaults() const override;
  void declare(Settings& settings) override;
  [[nodiscard]] ParallelPlan parallel_plan() const override { return {.blocks = {"conv*", "fc*"}}; }

 private:
  [[nodiscard]] data::Images read(const std::string& folder, bool is_training) const override;
  [[nodiscard]] Network make_network() const override;
  [[nodiscard]] at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& target,
                                   std::int64_t reduction) const override;
};

}  // namespace lockstep::train
