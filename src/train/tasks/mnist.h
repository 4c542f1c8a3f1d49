// Telling handwritten digits apart with the network of PyTorch's C++ MNIST example.
#pragma once

#include <lockstep/data/images.h>
#include <lockstep/models/conv_net.h>
#include <lockstep/train/epoch_batches.h>
#include <lockstep/train/task.h>

#include <optional>

namespace lockstep::train {

class MnistTask : public Task {
 public:
  [[nodiscard]] std::string name() const override { return "mnist"; }
  [[nodiscard]] Options defaults() const override;
  void declare(Settings& settings) override;
  void check() const override;

  void load(const Options& options, const Group& group) override;
  void load_validation(const Options& options, const Group& group,
                       const std::string& data) override;
  [[nodiscard]] std::string data_fingerprint() override { return fingerprint_; }
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override;
  [[nodiscard]] Replica make_replica() const override;
  [[nodiscard]] std::vector<std::string> units() const override { return {"conv*", "fc*"}; }

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

 private:
  // Sets validation data and fingerprint, and returns the training data.
  [[nodiscard]] data::Images read_own();
  std::string data_;
  std::string fingerprint_;
  std::optional<data::Images> validation_;
  std::optional<EpochBatches<data::Images>> batches_;
  models::ConvNet model_{nullptr};
};

}  // namespace lockstep::train
