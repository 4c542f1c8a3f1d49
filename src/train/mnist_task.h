// Telling handwritten digits apart with the network of PyTorch's C++ MNIST example.
#pragma once

#include "train/epoch_batches.h"
#include "train/task.h"

#include <lockstep/data/images.h>
#include <lockstep/models/conv_net.h>

#include <optional>

namespace lockstep::train {

class MnistTask : public Task {
 public:
  MnistTask(const Options& options, const Group& group) : options_(options), group_(group) {}

  void load(const std::string& identity) override;
  void load_validation(const std::string& identity, const std::string& file) override;
  [[nodiscard]] std::string data_fingerprint() const override { return fingerprint_; }
  void make_model() override { model_ = models::ConvNet(); }
  [[nodiscard]] std::shared_ptr<torch::nn::Module> module() const override { return model_.ptr(); }
  [[nodiscard]] std::vector<std::string> units() const override { return {"conv*", "fc*"}; }
  [[nodiscard]] std::int64_t steps_per_epoch() const override {
    return batches_->steps_per_epoch();
  }
  [[nodiscard]] Batch batch(std::int64_t step) override { return batches_->batch(step); }
  [[nodiscard]] at::Tensor loss(const Batch& batch) override;
  [[nodiscard]] std::int64_t validation_samples() const override;
  [[nodiscard]] std::int64_t evaluation_rows() const override { return 250; }
  [[nodiscard]] Totals measure(std::span<const std::size_t> samples) override;
  [[nodiscard]] bool has_accuracy() const override { return true; }

 private:
  // Sets validation data and fingerprint, and returns the training data.
  [[nodiscard]] data::Images read_own();

  const Options options_;
  Group group_;
  std::string fingerprint_;
  std::optional<data::Images> validation_;
  std::optional<EpochBatches<data::Images>> batches_;
  models::ConvNet model_{nullptr};
};

}  // namespace lockstep::train
