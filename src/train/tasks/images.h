// Image classification: the part that all data sets and networks share.
#pragma once

#include <lockstep/data/images.h>
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

  std::string fingerprint_;
  std::optional<data::Images> validation_;
  std::optional<EpochBatches<data::Images>> batches_;
  Network network_;
};

}  // namespace lockstep::train
