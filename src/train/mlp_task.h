// A quick task without a data file: following a random network of one hidden layer through
// noise-free examples.
#pragma once

#include "train/epoch_batches.h"
#include "train/task.h"

#include <lockstep/models/mlp.h>

#include <torch/data/datasets/base.h>

#include <optional>
#include <utility>

namespace lockstep::train {

// Rows of two tensors, as a dataset.
class Rows : public torch::data::datasets::BatchDataset<Rows, Batch> {
 public:
  explicit Rows(Batch all) : all_(std::move(all)) {}
  Batch get_batch(c10::ArrayRef<std::size_t> indices) override;
  [[nodiscard]] std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(all_.data.size(0));
  }

 private:
  Batch all_;
};

class MlpTask : public Task {
 public:
  MlpTask(const Options& options, const Group& group) : options_(options), group_(group) {}

  void load(const std::string& identity) override;
  void load_validation(const std::string& identity, const std::string& file) override;
  [[nodiscard]] double parameters() const override;
  [[nodiscard]] double activations() const override;
  // Made anew from the seed.
  [[nodiscard]] std::string data_fingerprint() const override {
    return "seed " + std::to_string(options_.seed);
  }
  void make_model() override;
  [[nodiscard]] std::shared_ptr<torch::nn::Module> module() const override { return model_.ptr(); }
  [[nodiscard]] std::vector<std::string> units() const override { return {"layers.*"}; }
  [[nodiscard]] std::int64_t steps_per_epoch() const override {
    return batches_->steps_per_epoch();
  }
  [[nodiscard]] Batch batch(std::int64_t step) override { return batches_->batch(step); }
  [[nodiscard]] at::Tensor loss(const Batch& batch) override;
  [[nodiscard]] std::int64_t validation_samples() const override {
    return static_cast<std::int64_t>(*validation_->size());
  }
  [[nodiscard]] std::int64_t evaluation_rows() const override { return 1000; }
  [[nodiscard]] Totals measure(std::span<const std::size_t> samples) override;

 private:
  struct Data {
    Rows training, validation;
  };
  [[nodiscard]] Data make_data() const;
  [[nodiscard]] std::vector<std::int64_t> sizes() const;

  const Options options_;
  Group group_;
  std::optional<Rows> validation_;
  std::optional<EpochBatches<Rows>> batches_;
  models::Mlp model_{nullptr};
};

}  // namespace lockstep::train
