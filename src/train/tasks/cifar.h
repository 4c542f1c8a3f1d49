// Telling small photographs of ten kinds apart: CIFAR-10 with ResNet-18.
#pragma once

#include <lockstep/data/images.h>
#include <lockstep/models/resnet.h>
#include <lockstep/train/epoch_batches.h>
#include <lockstep/train/task.h>

#include <optional>

namespace lockstep::train {

class CifarTask : public Task {
 public:
  [[nodiscard]] std::string name() const override { return "cifar"; }
  [[nodiscard]] Options defaults() const override;
  void declare(Settings& settings) override;
  void check() const override;

  void load(const Options& options, const Group& group) override;
  void load_validation(const Options& options, const Group& group,
                       const std::string& data) override;
  [[nodiscard]] std::string data_fingerprint() override { return fingerprint_; }
  [[nodiscard]] double parameters() const override;
  [[nodiscard]] double activations() const override;
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override;
  [[nodiscard]] Replica make_replica() const override;
  [[nodiscard]] std::vector<std::string> units() const override {
    return {"layer1.*", "layer2.*", "layer3.*", "layer4.*"};
  }
  void check_tensors(const checkpoint::NamedTensors& tensors) const override;

  [[nodiscard]] std::int64_t steps_per_epoch() const override {
    return batches_->steps_per_epoch();
  }
  // With --augment each image is moved by up to 4 pixels in both directions and mirrored or not, as
  // a generator of the step's own says: the same for any number of ranks.
  [[nodiscard]] Batch batch(std::int64_t step) override;
  [[nodiscard]] at::Tensor loss(const Batch& batch) override;
  [[nodiscard]] std::int64_t validation_samples() const override;
  [[nodiscard]] Batch validation(std::span<const std::size_t> samples) override;
  [[nodiscard]] std::int64_t evaluation_rows() const override { return 250; }
  [[nodiscard]] Totals measure(const Batch& batch) override;
  [[nodiscard]] bool has_accuracy() const override { return true; }

 private:
  // Sets validation data and fingerprint, and returns the training data.
  [[nodiscard]] data::Images read_own();
  [[nodiscard]] models::ResNetOptions model_options() const;

  std::string data_;
  std::int64_t width_ = 64;
  bool augments_ = true;
  Options options_;
  int rank_ = 0;
  int ranks_ = 1;
  std::string fingerprint_;
  std::optional<data::Images> validation_;
  std::optional<EpochBatches<data::Images>> batches_;
  models::ResNet18 model_{nullptr};
};

}  // namespace lockstep::train
