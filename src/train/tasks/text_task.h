// Predicting the next character, byte or token of a text: what the tasks of language models have in
// common.
#pragma once

#include <lockstep/data/blocks.h>
#include <lockstep/data/tokenizer.h>
#include <lockstep/models/generate.h>
#include <lockstep/train/task.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::train {

// What a token is.
enum class Vocabulary { chars, bytes, bpe, tokens };

constexpr std::array<Named<Vocabulary>, 4> names_of(Vocabulary) {
  return {{{"chars", Vocabulary::chars},
           {"bytes", Vocabulary::bytes},
           {"bpe", Vocabulary::bpe},
           {"tokens", Vocabulary::tokens}}};
}

class TextTask : public Task {
 public:
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
  [[nodiscard]] double activations() const override;

  [[nodiscard]] std::int64_t steps_per_epoch() const override;
  // Blocks that begin anywhere, drawn with a generator of the step's own: nanoGPT's get_batch.
  [[nodiscard]] Batch batch(std::int64_t step) override;
  // Targets count, not rows: the last block may be short.
  [[nodiscard]] double weight_of(const Batch& batch) const override;
  [[nodiscard]] std::int64_t validation_samples() const override;
  [[nodiscard]] Batch validation(std::span<const std::size_t> samples) override;
  [[nodiscard]] std::int64_t evaluation_rows() const override {
    return std::max<std::int64_t>(1, 4096 / block_);
  }
  [[nodiscard]] std::int64_t rows_at_once() const override;
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return block_; }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> results() const override;
  [[nodiscard]] bool makes_samples() const override { return true; }
  [[nodiscard]] std::string sample(std::int64_t length) override;
  [[nodiscard]] std::string sample_by(std::int64_t length, const GenerateTokens& generate) override;

  // Of the data that was read or the description that was restored. BadInput where the tables of
  // --bpe cannot be read, or are not those of the description.
  [[nodiscard]] data::Tokenizer tokenizer() const;
  // `count` tokens behind these, by the model of make_model().
  [[nodiscard]] virtual at::Tensor generate(const at::Tensor& ids, std::int64_t count,
                                            const models::GenerateOptions& options) = 0;
  [[nodiscard]] std::int64_t block() const { return block_; }

 protected:
  // Settings of this kind of model alone, behind those of all.
  virtual void declare_shape(Settings& settings) = 0;
  // BadInput for sizes that make no model; `option` writes a setting's name.
  virtual void check_shape(const std::function<std::string(const char*)>& option) const = 0;
  // Of the data that was read or the description that was restored: the rows of an embedding; 0
  // before.
  [[nodiscard]] std::int64_t tokens_known() const { return known_ ? known_->size() : 0; }
  // BadInput where an embedding has other rows.
  void check_vocabulary(std::int64_t rows) const;

  std::int64_t layers_ = 4;
  std::int64_t heads_ = 4;
  std::int64_t width_ = 128;
  std::int64_t block_ = 64;

 private:
  void declare_tokens(Settings& settings);
  // What a run learns from: the run's own data, split, or a text to measure.
  struct Tokens {
    at::Tensor train, validation;
  };
  [[nodiscard]] Tokens own_tokens();
  [[nodiscard]] at::Tensor tokens_of(const std::filesystem::path& data);
  // Sets known_ by the options, where it is not known.
  void find_tokenizer(const std::string& text);

  std::string data_;
  Vocabulary vocabulary_ = Vocabulary::chars;
  std::int64_t vocabulary_size_ = 0;  // of bpe and tokens; 0: that of the encoding
  std::string bpe_;                   // a folder; empty: none
  c10::ScalarType token_dtype_ = at::kUInt16;

  std::optional<data::Tokenizer> known_;
  std::string bpe_print_;  // of the description that was restored: which tables
  Options options_;
  int rank_ = 0;
  int ranks_ = 1;
  Tokens tokens_;
  std::optional<data::RandomBlocks> training_;
  std::optional<data::SequentialBlocks> validation_;
};

}  // namespace lockstep::train
