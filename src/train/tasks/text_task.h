// Predicting the next character (or byte) of a text: what the tasks of language models have in
// common.
#pragma once

#include <lockstep/data/blocks.h>
#include <lockstep/data/text.h>
#include <lockstep/models/generate.h>
#include <lockstep/train/task.h>

#include <algorithm>
#include <optional>

namespace lockstep::train {

class TextTask : public Task {
 public:
  [[nodiscard]] Options defaults() const override;
  void declare(Settings& settings) override;
  void check() const override;
  // The characters of the vocabulary, where it is not that of bytes.
  [[nodiscard]] checkpoint::Metadata description() const override;
  void restore(const checkpoint::Metadata& description) override;

  void load(const Options& options, const Group& group) override;
  void load_validation(const Options& options, const Group& group,
                       const std::string& data) override;
  [[nodiscard]] std::string data_fingerprint() override;
  [[nodiscard]] double activations() const override;

  [[nodiscard]] std::int64_t steps_per_epoch() const override;
  // Blocks that begin anywhere, drawn with a generator of the step's own: nanoGPT's get_batch.
  [[nodiscard]] Batch batch(std::int64_t step) override;
  [[nodiscard]] at::Tensor pipeline_loss(const Tensors& outputs, const Tensors& targets) override;
  // Targets count, not rows: the last block may be short.
  [[nodiscard]] double weight_of(const Batch& batch) const override;
  [[nodiscard]] std::int64_t validation_samples() const override;
  [[nodiscard]] Batch validation(std::span<const std::size_t> samples) override;
  [[nodiscard]] std::int64_t evaluation_rows() const override {
    return std::max<std::int64_t>(1, 4096 / block_);
  }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return block_; }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> results() const override;
  [[nodiscard]] bool makes_samples() const override { return true; }
  [[nodiscard]] std::string sample(std::int64_t length) override;

  // Of the text that was read or the description that was restored.
  [[nodiscard]] const data::Vocabulary& vocabulary() const { return *known_; }
  // `count` tokens behind these, by the model of make_model().
  [[nodiscard]] virtual at::Tensor generate(const at::Tensor& ids, std::int64_t count,
                                            const models::GenerateOptions& options) = 0;
  [[nodiscard]] std::int64_t block() const { return block_; }

 protected:
  // Settings of this kind of model alone, behind those of all.
  virtual void declare_shape(Settings& settings) = 0;
  // BadInput for sizes that make no model; `option` writes a setting's name.
  virtual void check_shape(const std::function<std::string(const char*)>& option) const = 0;

  std::int64_t layers_ = 4;
  std::int64_t heads_ = 4;
  std::int64_t width_ = 128;
  std::int64_t block_ = 64;

 private:
  // The run's text, split; in the vocabulary that was restored, if one was.
  [[nodiscard]] data::Text own_text() const;

  std::string data_;
  std::string vocabulary_ = "chars";  // chars, bytes

  std::optional<data::Vocabulary> known_;
  Options options_;
  int rank_ = 0;
  int ranks_ = 1;
  std::optional<data::Text> text_;
  std::optional<data::RandomBlocks> training_;
  std::optional<data::SequentialBlocks> validation_;
};

}  // namespace lockstep::train
