// A quick task without a data file: learns to imitate a random network with one hidden layer from
// noise-free examples.
#pragma once

#include <lockstep/models/mlp.h>
#include <lockstep/train/epoch_batches.h>
#include <lockstep/train/task.h>

#include <torch/data/datasets/base.h>

#include <optional>
#include <utility>

namespace lockstep::train {

// Rows of two tensors, as a dataset.
class Rows : public torch::data::datasets::BatchDataset<Rows, torch::data::Example<>> {
 public:
  explicit Rows(torch::data::Example<> all) : all_(std::move(all)) {}
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  [[nodiscard]] std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(all_.data.size(0));
  }

 private:
  torch::data::Example<> all_;
};

class MlpTask : public Task {
 public:
  [[nodiscard]] std::string name() const override { return "mlp"; }
  [[nodiscard]] Options defaults() const override;
  void declare(Settings& settings) override;
  // Returns the seed of the generated data.
  [[nodiscard]] checkpoint::Metadata description() const override;
  void restore(const checkpoint::Metadata& description) override;

  void load(const Options& options, const Group& group) override;
  void load_validation(const Options& options, const Group& group,
                       const std::string& data) override;
  [[nodiscard]] std::string data_fingerprint() override { return "seed " + std::to_string(seed_); }
  [[nodiscard]] double parameters() const override;
  [[nodiscard]] double activations() const override;
  [[nodiscard]] double flops_per_sample() const override { return 6 * parameters(); }
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override;
  [[nodiscard]] Replica make_replica() const override;
  [[nodiscard]] ParallelPlan parallel_plan() const override { return {.blocks = {"layers.*"}}; }

  [[nodiscard]] std::int64_t steps_per_epoch() const override {
    return batches_->steps_per_epoch();
  }
  [[nodiscard]] Batch batch(std::int64_t step) override { return batches_->batch(step); }
  [[nodiscard]] at::Tensor loss(const Batch& batch) override;
  [[nodiscard]] std::int64_t validation_samples() const override {
    return static_cast<std::int64_t>(*validation_->size());
  }
  [[nodiscard]] Batch validation(std::span<const std::size_t> samples) override {
    return validation_->get_batch({samples.data(), samples.size()});
  }
  [[nodiscard]] std::int64_t evaluation_rows() const override { return 1000; }

 private:
  struct Data {
    Rows training, validation;
  };
  [[nodiscard]] Data make_data() const;
  [[nodiscard]] std::vector<std::int64_t> sizes() const;

  std::int64_t layers_ = 2;
  std::int64_t width_ = 64;
  std::int64_t seed_ = 0;

  double rows_ = 0;  // of this rank's micro-batch
  std::optional<Rows> validation_;
  std::optional<EpochBatches<Rows>> batches_;
  models::Mlp model_{nullptr};
};

}  // namespace lockstep::train
