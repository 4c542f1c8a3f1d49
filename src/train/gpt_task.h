// Predicting the next character (or byte) of a text with a GPT.
#pragma once

#include "train/data_fingerprint.h"
#include "train/task.h"

#include <lockstep/data/blocks.h>
#include <lockstep/data/text.h>
#include <lockstep/models/gpt.h>

#include <algorithm>
#include <optional>

namespace lockstep::train {

class GptTask : public Task {
 public:
  GptTask(const Options& options, const Group& group);

  void load(const std::string& identity) override;
  void load_validation(const std::string& identity, const std::string& file) override;
  [[nodiscard]] std::string data_identity() const override { return text_->vocabulary.to_text(); }
  [[nodiscard]] double parameters() const override;
  [[nodiscard]] double activations() const override;
  [[nodiscard]] std::string data_fingerprint() const override {
    return fingerprint_of_tensors({text_->train, text_->validation});
  }
  void make_model() override;
  [[nodiscard]] std::shared_ptr<torch::nn::Module> module() const override { return model_.ptr(); }
  [[nodiscard]] std::vector<std::string> units() const override { return {"transformer.h.*"}; }
  [[nodiscard]] std::int64_t steps_per_epoch() const override;
  // Blocks that begin anywhere, drawn with a generator of the step's own: nanoGPT's get_batch.
  [[nodiscard]] Batch batch(std::int64_t step) override;
  [[nodiscard]] at::Tensor loss(const Batch& batch) override;
  [[nodiscard]] std::int64_t validation_samples() const override;
  [[nodiscard]] std::int64_t evaluation_rows() const override {
    return std::max<std::int64_t>(1, 4096 / options_.block);
  }
  [[nodiscard]] Totals measure(std::span<const std::size_t> samples) override;
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return options_.block; }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> results() const override;
  [[nodiscard]] std::string sample(std::int64_t tokens) const override;

 private:
  // The run's text, split; `identity` as in load().
  [[nodiscard]] data::Text own_text(const std::string& identity) const;

  const Options options_;
  int rank_;
  int ranks_;
  std::optional<data::Text> text_;
  std::optional<data::RandomBlocks> training_;
  std::optional<data::SequentialBlocks> validation_;
  models::Gpt model_{nullptr};
};

}  // namespace lockstep::train
