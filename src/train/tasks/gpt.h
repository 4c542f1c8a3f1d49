// Predicting the next character, byte or token of a text with a GPT.
#pragma once

#include <lockstep/data/blocks.h>
#include <lockstep/data/tokenizer.h>
#include <lockstep/models/gpt.h>
#include <lockstep/train/task.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::train {

class GptTask : public Task {
 public:
  [[nodiscard]] std::string name() const override { return "gpt"; }
  [[nodiscard]] Options defaults() const override;
  void declare(Settings& settings) override;
  void check() const override;
  // What tells the tokens apart: the characters of the vocabulary, which byte-pair encoding it is,
  // how many tokens there are.
  [[nodiscard]] checkpoint::Metadata description() const override;
  void restore(const checkpoint::Metadata& description) override;

  void load(const Options& options, const Group& group) override;
  void load_validation(const Options& options, const Group& group,
                       const std::string& data) override;
  [[nodiscard]] std::string data_fingerprint() override;
  [[nodiscard]] double parameters() const override;
  [[nodiscard]] double activations() const override;
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override;
  [[nodiscard]] Replica make_replica() const override;
  [[nodiscard]] std::vector<std::string> units() const override { return {"transformer.h.*"}; }
  void check_tensors(const checkpoint::NamedTensors& tensors) const override;

  [[nodiscard]] std::int64_t steps_per_epoch() const override;
  // Blocks that begin anywhere, drawn with a generator of the step's own: nanoGPT's get_batch.
  [[nodiscard]] Batch batch(std::int64_t step) override;
  [[nodiscard]] at::Tensor loss(const Batch& batch) override;
  [[nodiscard]] std::int64_t validation_samples() const override;
  [[nodiscard]] Batch validation(std::span<const std::size_t> samples) override;
  [[nodiscard]] std::int64_t evaluation_rows() const override {
    return std::max<std::int64_t>(1, 4096 / block_);
  }
  // Targets count, not rows: the last block may be short.
  [[nodiscard]] Totals measure(const Batch& batch) override;
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return block_; }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> results() const override;
  [[nodiscard]] bool makes_samples() const override { return true; }
  [[nodiscard]] std::string sample(std::int64_t length) override;

  // Of the data that was read or the description that was restored. BadInput where the tables of
  // --bpe cannot be read, or are not those of the description.
  [[nodiscard]] data::Tokenizer tokenizer() const;
  [[nodiscard]] models::Gpt model() const { return model_; }

 private:
  void declare_tokens(Settings& settings);
  [[nodiscard]] models::GptOptions model_options() const;
  // What a run learns from: the run's own data, split, or a text to measure.
  struct Tokens {
    at::Tensor train, validation;
  };
  [[nodiscard]] Tokens own_tokens();
  [[nodiscard]] at::Tensor tokens_of(const std::filesystem::path& data);
  // Sets known_ by the options, where it is not known.
  void find_tokenizer(const std::string& text);

  std::string data_;
  std::int64_t layers_ = 4;
  std::int64_t heads_ = 4;
  std::int64_t width_ = 128;
  std::int64_t block_ = 64;
  double dropout_ = 0;
  std::string vocabulary_ = "chars";  // chars, bytes, bpe, tokens
  std::int64_t vocabulary_size_ = 0;  // of bpe and tokens; 0: that of the encoding
  std::string bpe_;                   // a folder; empty: none
  std::string token_dtype_ = "uint16";

  std::optional<data::Tokenizer> known_;
  std::string bpe_print_;  // of the description that was restored: which tables
  Options options_;
  int rank_ = 0;
  int ranks_ = 1;
  Tokens tokens_;
  std::optional<data::RandomBlocks> training_;
  std::optional<data::SequentialBlocks> validation_;
  models::Gpt model_{nullptr};
};

}  // namespace lockstep::train
