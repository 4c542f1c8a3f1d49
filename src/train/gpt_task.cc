#include "train/gpt_task.h"

#include "base/check.h"
#include "base/format.h"
#include "data/bigram.h"
#include "train/random_streams.h"

#include <lockstep/train/generation.h>

#include <ATen/CPUGeneratorImpl.h>

#include <filesystem>

namespace lockstep::train {

GptTask::GptTask(const Options& options, const Group& group)
    : options_(options), rank_(group.rank()), ranks_(group.size()) {}

void GptTask::load(const std::string& identity) {
  text_ = own_text(identity);
  std::int64_t rows = text_->train.size(0) / options_.block;
  check_input(
      rows >= ranks_,
      "{}: expected a block of {} tokens for each of {} ranks, found {} tokens for training",
      options_.data, options_.block, ranks_, text_->train.size(0));
  training_.emplace(text_->train, options_.block);
  validation_.emplace(text_->validation, options_.block);
}

void GptTask::load_validation(const std::string& identity, const std::string& file) {
  if (file.empty()) {
    text_ = own_text(identity);
  } else {
    data::Vocabulary vocabulary = data::Vocabulary::from_text(identity);
    text_ = data::Text{vocabulary, at::empty({0}, at::kByte),
                       vocabulary.encode(data::read_text(file), file)};
    // The bigram model learns from the run's own text, where that is still there.
    if (!options_.data.empty() && std::filesystem::exists(options_.data))
      text_->train = own_text(identity).train;
  }
  check_input(text_->validation.size(0) >= 2, "{}: expected two tokens or more, found {}",
              file.empty() ? options_.data : file, text_->validation.size(0));
  validation_.emplace(text_->validation, options_.block);
}

data::Text GptTask::own_text(const std::string& identity) const {
  data::TextOptions how{.bytes = options_.vocabulary == "bytes"};
  if (!identity.empty()) how.vocabulary = data::Vocabulary::from_text(identity);
  return data::load_text(options_.data, how);
}

double GptTask::parameters() const {
  auto width = static_cast<double>(options_.width);
  auto rows_of_embeddings = static_cast<double>(text_->vocabulary.size() + options_.block);
  double block = (3 + 1 + 4 + 4) * width * width + 2 * width;  // linear layers, and two norms
  return static_cast<double>(options_.layers) * block + rows_of_embeddings * width + width;
}

double GptTask::activations() const {
  auto tokens = static_cast<double>(options_.batch) * static_cast<double>(options_.block) /
                static_cast<double>(ranks_ * options_.accumulate);
  // Inputs of the linear layers and norms of a block, and queries, keys and values: 16 widths.
  constexpr double widths = 12;
  auto layers = static_cast<double>(options_.layers);
  return tokens * (layers * widths * static_cast<double>(options_.width) +
                   static_cast<double>(text_->vocabulary.size()));
}

void GptTask::make_model() {
  model_ = models::Gpt(models::GptOptions{.layers = options_.layers,
                                          .heads = options_.heads,
                                          .width = options_.width,
                                          .block = options_.block,
                                          .vocabulary = text_->vocabulary.size(),
                                          .dropout = options_.dropout});
}

std::int64_t GptTask::steps_per_epoch() const {
  std::int64_t tokens = options_.batch * options_.block;
  return std::max<std::int64_t>(1, (text_->train.size(0) + tokens - 1) / tokens);
}

Batch GptTask::batch(std::int64_t step) {
  at::Generator generator = at::detail::createCPUGenerator(stream_seed(options_.seed, step));
  return training_->draw(options_.batch / ranks_, generator, rank_, ranks_);
}

at::Tensor GptTask::loss(const Batch& batch) { return model_->loss(batch.data, batch.target); }

std::int64_t GptTask::validation_samples() const {
  return static_cast<std::int64_t>(*validation_->size());
}

Totals GptTask::measure(std::span<const std::size_t> samples) {
  Batch batch = validation_->get_batch({samples.data(), samples.size()});
  auto targets = static_cast<double>(data::count_targets(batch.target));
  return {.loss = model_->loss(batch.data, batch.target).item<double>() * targets,
          .targets = targets};
}

std::vector<std::pair<std::string, std::string>> GptTask::results() const {
  if (text_->train.size(0) == 0) return {};
  double bigram =
      data::bigram_cross_entropy(text_->train, text_->validation, text_->vocabulary.size());
  return {{"bigram", formatted("{:.3f}", bigram)}};
}

std::string GptTask::sample(std::int64_t tokens) const {
  std::string text;
  generate_text(model_, text_->vocabulary,
                {.prompt = text_->vocabulary.decode(text_->train.narrow(0, 0, 1)),
                 .tokens = tokens,
                 .seed = static_cast<std::uint64_t>(options_.seed),
                 .with_prompt = true},
                [&](std::string_view more) { text += more; });
  return text;
}

}  // namespace lockstep::train
