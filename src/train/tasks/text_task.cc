#include "train/tasks/text_task.h"

#include "base/check.h"
#include "data/bigram.h"
#include "train/data_fingerprint.h"
#include "train/random_streams.h"

#include <lockstep/parallel/pipeline/language_models.h>
#include <lockstep/train/generation.h>

#include <ATen/CPUGeneratorImpl.h>

#include <filesystem>

namespace lockstep::train {

Options TextTask::defaults() const {
  Options options;
  options.steps = 2000;
  options.batch = 12;
  options.lr = 1e-3;
  options.min_lr = 1e-4;
  options.schedule = "cosine";
  options.warmup = 100;
  options.beta2 = 0.99;
  options.weight_decay = 0.1;
  options.clip = 1;
  options.eval_every = 250;
  options.eval_batches = 20;
  options.save_every = 1000;
  return options;
}

void TextTask::declare(Settings& settings) {
  constexpr double most_sizes = 10'000, most_width = 1 << 20;
  settings.add({.name = "data", .help = "text to learn from: a file or folder", .is_path = true},
               data_);
  settings.add({.name = "layers",
                .help = "transformer blocks",
                .least = 1,
                .most = most_sizes,
                .scope = Scope::shape},
               layers_);
  settings.add({.name = "heads",
                .help = "attention heads",
                .least = 1,
                .most = most_sizes,
                .scope = Scope::shape},
               heads_);
  settings.add({.name = "width",
                .help = "features between layers",
                .least = 1,
                .most = most_width,
                .scope = Scope::shape},
               width_);
  settings.add({.name = "block",
                .help = "tokens in a row",
                .least = 1,
                .most = most_width,
                .scope = Scope::shape},
               block_);
  declare_shape(settings);
  settings.add({.name = "vocabulary",
                .help = "chars (those of the text) or bytes (all 256)",
                .choices = {"chars", "bytes"},
                .scope = Scope::shape},
               vocabulary_);
}

void TextTask::check() const {
  check_shape([](const char* name) { return std::string("--") + name; });
  check_input(!data_.empty(), "--data is missing: name a file or folder to learn from");
}

checkpoint::Metadata TextTask::description() const {
  if (known_->is_bytes()) return {};
  return {{"characters", known_->alphabet()}};
}

void TextTask::restore(const checkpoint::Metadata& description) {
  check_shape([](const char* name) { return std::string(name); });
  if (vocabulary_ == "bytes") {
    known_ = data::Vocabulary::bytes();
    return;
  }
  auto found = description.find("characters");
  check_input(found != description.end(), "expected an entry 'characters', found none");
  const std::string& characters = found->second;
  check_input(!characters.empty(), "characters: expected some, found none");
  known_ = data::Vocabulary::characters(characters, "the entry characters");
  check_input(known_->alphabet() == characters,
              "characters: expected each once and in ascending order");
}

void TextTask::load(const Options& options, const Group& group) {
  options_ = options;
  rank_ = group.rank();
  ranks_ = group.size();
  text_ = own_text();
  known_ = text_->vocabulary;
  std::int64_t rows = text_->train.size(0) / block_;
  check_input(
      rows >= ranks_,
      "{}: expected a block of {} tokens for each of {} ranks, found {} tokens for training", data_,
      block_, ranks_, text_->train.size(0));
  training_.emplace(text_->train, block_);
  validation_.emplace(text_->validation, block_);
}

void TextTask::load_validation(const Options& options, const Group&, const std::string& data) {
  options_ = options;
  if (data.empty()) {
    text_ = own_text();
  } else {
    text_ = data::Text{vocabulary(), at::empty({0}, at::kByte),
                       vocabulary().encode(data::read_text(data), data)};
    // The bigram model learns from the run's own text, where that is still there.
    if (!data_.empty() && std::filesystem::exists(data_)) text_->train = own_text().train;
  }
  check_input(text_->validation.size(0) >= 2, "{}: expected two tokens or more, found {}",
              data.empty() ? data_ : data, text_->validation.size(0));
  validation_.emplace(text_->validation, block_);
}

data::Text TextTask::own_text() const {
  return data::load_text(data_, {.bytes = vocabulary_ == "bytes", .vocabulary = known_});
}

std::string TextTask::data_fingerprint() {
  return fingerprint_of_tensors({text_->train, text_->validation});
}

double TextTask::activations() const {
  auto tokens = static_cast<double>(options_.batch) * static_cast<double>(block_) /
                static_cast<double>(ranks_ * options_.accumulate);
  // Inputs of the linear layers and norms of a block, and queries, keys and values: 16 widths.
  constexpr double widths = 12;
  auto layers = static_cast<double>(layers_);
  return tokens * (layers * widths * static_cast<double>(width_) +
                   static_cast<double>(text_->vocabulary.size()));
}

std::int64_t TextTask::steps_per_epoch() const {
  std::int64_t tokens = options_.batch * block_;
  return std::max<std::int64_t>(1, (text_->train.size(0) + tokens - 1) / tokens);
}

Batch TextTask::batch(std::int64_t step) {
  at::Generator generator = at::detail::createCPUGenerator(stream_seed(options_.seed, step));
  return training_->draw(options_.batch / ranks_, generator, rank_, ranks_);
}

std::int64_t TextTask::validation_samples() const {
  return static_cast<std::int64_t>(*validation_->size());
}

Batch TextTask::validation(std::span<const std::size_t> samples) {
  return validation_->get_batch({samples.data(), samples.size()});
}

at::Tensor TextTask::pipeline_loss(const Tensors& outputs, const Tensors& targets) {
  return token_loss(outputs, targets);
}

double TextTask::weight_of(const Batch& batch) const {
  return static_cast<double>(data::count_targets(batch.target));
}

std::vector<std::pair<std::string, std::string>> TextTask::results() const {
  if (text_->train.size(0) == 0) return {};
  double bigram =
      data::bigram_cross_entropy(text_->train, text_->validation, text_->vocabulary.size());
  return {{"bigram", formatted("{:.3f}", bigram)}};
}

std::string TextTask::sample(std::int64_t length) {
  std::string text;
  generate_text([this](const at::Tensor& ids, std::int64_t count,
                       const models::GenerateOptions& how) { return generate(ids, count, how); },
                block_, vocabulary(),
                {.prompt = vocabulary().decode(text_->train.narrow(0, 0, 1)),
                 .tokens = length,
                 .seed = static_cast<std::uint64_t>(options_.seed),
                 .with_prompt = true},
                [&](std::string_view more) { text += more; });
  return text;
}

}  // namespace lockstep::train
