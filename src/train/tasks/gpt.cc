#include "train/tasks/gpt.h"

#include "base/check.h"
#include "data/bigram.h"
#include "train/data_fingerprint.h"
#include "train/random_streams.h"
#include "train/tasks/tensor_checks.h"

#include <lockstep/train/generation.h>

#include <ATen/CPUGeneratorImpl.h>

#include <filesystem>

namespace lockstep::train {

Options GptTask::defaults() const {
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

void GptTask::declare(Settings& settings) {
  constexpr double most_sizes = 10'000, most_width = 1 << 20, most_dropout = 0.99;
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
  settings.add({.name = "dropout",
                .help = "share of activations that are dropped",
                .most = most_dropout,
                .scope = Scope::model},
               dropout_);
  settings.add({.name = "vocabulary",
                .help = "chars (those of the text) or bytes (all 256)",
                .choices = {"chars", "bytes"},
                .scope = Scope::shape},
               vocabulary_);
}

void GptTask::check() const {
  check_input(width_ % heads_ == 0, "--width {} is not a multiple of --heads {}", width_, heads_);
  check_input(!data_.empty(), "--data is missing: name a file or folder to learn from");
}

checkpoint::Metadata GptTask::description() const {
  if (known_->is_bytes()) return {};
  return {{"characters", known_->alphabet()}};
}

void GptTask::restore(const checkpoint::Metadata& description) {
  check_input(width_ % heads_ == 0, "width {} is not a multiple of heads {}", width_, heads_);
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

void GptTask::load(const Options& options, const Group& group) {
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

void GptTask::load_validation(const Options& options, const Group&, const std::string& data) {
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

data::Text GptTask::own_text() const {
  return data::load_text(data_, {.bytes = vocabulary_ == "bytes", .vocabulary = known_});
}

std::string GptTask::data_fingerprint() {
  return fingerprint_of_tensors({text_->train, text_->validation});
}

double GptTask::parameters() const {
  auto width = static_cast<double>(width_);
  auto rows_of_embeddings = static_cast<double>(text_->vocabulary.size() + block_);
  double block = (3 + 1 + 4 + 4) * width * width + 2 * width;  // linear layers, and two norms
  return static_cast<double>(layers_) * block + rows_of_embeddings * width + width;
}

double GptTask::activations() const {
  auto tokens = static_cast<double>(options_.batch) * static_cast<double>(block_) /
                static_cast<double>(ranks_ * options_.accumulate);
  // Inputs of the linear layers and norms of a block, and queries, keys and values: 16 widths.
  constexpr double widths = 12;
  auto layers = static_cast<double>(layers_);
  return tokens * (layers * widths * static_cast<double>(width_) +
                   static_cast<double>(text_->vocabulary.size()));
}

models::GptOptions GptTask::model_options() const {
  return {.layers = layers_,
          .heads = heads_,
          .width = width_,
          .block = block_,
          .vocabulary = vocabulary().size(),
          .dropout = dropout_};
}

std::shared_ptr<torch::nn::Module> GptTask::make_model() {
  model_ = models::Gpt(model_options());
  return model_.ptr();
}

Replica GptTask::make_replica() const {
  models::Gpt model(model_options());
  return {model.ptr(),
          [model](const Batch& batch) mutable { return model->loss(batch.data, batch.target); }};
}

void GptTask::check_tensors(const checkpoint::NamedTensors& tensors) const {
  check_entry("layers", layers_, count_layers(tensors, "transformer.h.", ".ln_1.weight"));
  check_entry("width", width_, size_in(tensors, "transformer.wte.weight", 1));
  check_entry("block", block_, size_in(tensors, "transformer.wpe.weight", 0));
  check_entry(vocabulary().is_bytes() ? "vocabulary" : "characters", vocabulary().size(),
              size_in(tensors, "transformer.wte.weight", 0));
  auto width = static_cast<double>(width_);
  check_elements(tensors, static_cast<double>(layers_) * 12 * width * width);
}

std::int64_t GptTask::steps_per_epoch() const {
  std::int64_t tokens = options_.batch * block_;
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

Batch GptTask::validation(std::span<const std::size_t> samples) {
  return validation_->get_batch({samples.data(), samples.size()});
}

Totals GptTask::measure(const Batch& batch) {
  auto targets = static_cast<double>(data::count_targets(batch.target));
  return {.loss = loss(batch).item<double>() * targets, .targets = targets};
}

std::vector<std::pair<std::string, std::string>> GptTask::results() const {
  if (text_->train.size(0) == 0) return {};
  double bigram =
      data::bigram_cross_entropy(text_->train, text_->validation, text_->vocabulary.size());
  return {{"bigram", formatted("{:.3f}", bigram)}};
}

std::string GptTask::sample(std::int64_t length) {
  std::string text;
  generate_text(model_, vocabulary(),
                {.prompt = vocabulary().decode(text_->train.narrow(0, 0, 1)),
                 .tokens = length,
                 .seed = static_cast<std::uint64_t>(options_.seed),
                 .with_prompt = true},
                [&](std::string_view more) { text += more; });
  return text;
}

}  // namespace lockstep::train
