#include "train/tasks/text_task.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/text.h"
#include "data/bigram.h"
#include "sys/files.h"
#include "train/progress.h"
#include "train/tasks/known.h"

#include <lockstep/data/text.h>
#include <lockstep/data/tokens.h>
#include <lockstep/train/generation.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr double training_part = 0.9;  // the rest is the validation part
// With more tokens, counting pairs needs more memory than the result is worth.
constexpr std::int64_t most_of_bigram = 4096;

// Entries of a description.
constexpr const char* tokens_entry = "vocabulary_tokens";
constexpr const char* bpe_entry = "bpe_fingerprint";

std::string print_of(const data::Bpe& bpe) {
  return formatted("{} tokens, {:016x}", bpe.size(), bpe.fingerprint());
}

// Reads the tables under the names of model hubs, or under those of GPT-2's own release.
data::Bpe read_bpe(const fs::path& folder) {
  for (const auto& [vocabulary, merges] :
       {std::pair("vocab.json", "merges.txt"), std::pair("encoder.json", "vocab.bpe")})
    if (sys::exists(folder / vocabulary) || sys::exists(folder / merges))
      return data::Bpe::load(folder / vocabulary, folder / merges);
  throw BadInput(
      formatted("--bpe {}: expected a folder of vocab.json and merges.txt (or "
                "encoder.json and vocab.bpe), found neither",
                folder.string()));
}

}  // namespace

Options TextTask::defaults() const {
  Options options;
  options.steps = 2000;
  options.batch = 12;
  options.lr = 1e-3;
  options.min_lr = 1e-4;
  options.schedule = ScheduleKind::cosine;
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
  settings.add(shape_size("layers", "transformer blocks", most_sizes), layers_);
  settings.add(shape_size("heads", "attention heads", most_sizes), heads_);
  settings.add(shape_size("width", "features between layers", most_width), width_);
  settings.add(shape_size("block", "tokens in a row", most_width), block_);
  declare_shape(settings);
  declare_tokens(settings);
}

void TextTask::declare_tokens(Settings& settings) {
  constexpr double most_tokens = 1 << 30;
  settings.add({.name = "vocabulary",
                .help = "what a token is: chars (those of the text), bytes (all 256), bpe (of "
                        "--bpe), tokens (--data is numbers of tokens: a file, or a folder of "
                        "train.bin and val.bin)",
                .scope = Scope::shape},
               vocabulary_);
  settings.add({.name = "vocabulary-size",
                .help = "of bpe and tokens: rows of the embedding; 0: the tokens of --bpe",
                .most = most_tokens,
                .scope = Scope::shape},
               vocabulary_size_);
  settings.add({.name = "bpe",
                .help = "of bpe and tokens: folder of vocab.json and merges.txt, as GPT-2's",
                .is_path = true},
               bpe_);
  settings.add(
      {.name = "token-dtype",
       .help = "of tokens: uint16 or uint32, little-endian",
       .scope = Scope::model},
      in_words<c10::ScalarType>({{"uint16", at::kUInt16}, {"uint32", at::kUInt32}}, token_dtype_));
}

void TextTask::check() const {
  check_shape([](const char* name) { return std::string("--") + name; });
  check_input(!data_.empty(), "--data is missing: name a file or folder to learn from");
  const bool is_plain = vocabulary_ == Vocabulary::chars || vocabulary_ == Vocabulary::bytes;
  check_input(!is_plain || (bpe_.empty() && vocabulary_size_ == 0),
              "--{} needs --vocabulary bpe or tokens, found {}",
              bpe_.empty() ? "vocabulary-size" : "bpe", word_of(vocabulary_));
  check_input(vocabulary_ != Vocabulary::bpe || !bpe_.empty(),
              "--vocabulary bpe needs --bpe, the folder of vocab.json and merges.txt");
  check_input(vocabulary_ != Vocabulary::tokens || !bpe_.empty() || vocabulary_size_ > 0,
              "--vocabulary tokens needs --vocabulary-size, or --bpe");
}

checkpoint::Metadata TextTask::description() const {
  const data::Vocabulary* characters = known_->vocabulary();
  if (characters == nullptr) {
    checkpoint::Metadata entries{{tokens_entry, formatted("{}", known_->size())}};
    const std::string print = known_->bpe() != nullptr ? print_of(*known_->bpe()) : bpe_print_;
    if (!print.empty()) entries[bpe_entry] = print;
    return entries;
  }
  if (characters->is_bytes()) return {};
  return {{"characters", characters->alphabet()}};
}

void TextTask::restore(const checkpoint::Metadata& description) {
  check_shape([](const char* name) { return std::string(name); });
  auto entry = [&](const char* name) -> const std::string& {
    auto found = description.find(name);
    check_input(found != description.end(), "expected an entry '{}', found none", name);
    return found->second;
  };
  if (vocabulary_ == Vocabulary::bytes) {
    known_ = data::Vocabulary::bytes();
    return;
  }
  if (vocabulary_ != Vocabulary::chars) {
    const std::optional<std::int64_t> size = parse_integer(entry(tokens_entry));
    check_input(size.has_value(), "{}: expected a number, found '{}'", tokens_entry,
                escaped(entry(tokens_entry)));
    if (vocabulary_ == Vocabulary::bpe || description.contains(bpe_entry))
      bpe_print_ = entry(bpe_entry);
    known_ = data::Tokenizer::numbers(*size);
    return;
  }
  const std::string& characters = entry("characters");
  check_input(!characters.empty(), "characters: expected some, found none");
  known_ = data::Vocabulary::characters(characters, "the entry characters");
  check_input(known_->vocabulary()->alphabet() == characters,
              "characters: expected each once and in ascending order");
}

// If only the number of tokens is known yet, but tables are available, makes the tokenizer from the
// tables.
data::Tokenizer TextTask::tokenizer() const {
  if (known_->vocabulary() != nullptr || known_->bpe() != nullptr || bpe_.empty()) return *known_;
  const data::Bpe bpe = read_bpe(bpe_);
  check_input(bpe_print_.empty() || print_of(bpe) == bpe_print_,
              "{}: expected the byte-pair encoding that the model was trained with ({}), found "
              "another one ({})",
              bpe_, escaped(bpe_print_), print_of(bpe));
  return data::Tokenizer(bpe, known_->size());
}

void TextTask::load(const Options& options, const Group& group) {
  options_ = options;
  rank_ = group.rank();
  ranks_ = group.size();
  tokens_ = own_tokens();
  std::int64_t rows = tokens_.train.size(0) / block_;
  check_input(rows >= ranks_, "{}: expected a block of {} for each of {}, found {} for training",
              data_, counted(block_, "token"), counted(ranks_, "rank"),
              counted(tokens_.train.size(0), "token"));
  training_.emplace(tokens_.train, block_);
  validation_.emplace(tokens_.validation, block_);
}

void TextTask::load_validation(const Options& options, const Group&, const std::string& data) {
  options_ = options;
  if (data.empty()) {
    tokens_ = own_tokens();
  } else {
    tokens_ = {at::empty({0}, at::kByte), tokens_of(data)};
    // The bigram model learns from the run's own text, if the text still exists.
    try {
      if (!data_.empty() && sys::exists(data_)) tokens_.train = own_tokens().train;
    } catch (const BadInput&) {  // it has changed
    }
  }
  check_input(tokens_.validation.size(0) >= 2, "{}: expected two tokens or more, found {}",
              data.empty() ? data_ : data, tokens_.validation.size(0));
  validation_.emplace(tokens_.validation, block_);
}

void TextTask::find_tokenizer(const std::string& text) {
  if (vocabulary_ == Vocabulary::bytes) {
    known_ = data::Vocabulary::bytes();
  } else if (vocabulary_ == Vocabulary::chars) {
    if (!known_) known_ = data::Vocabulary::characters(text, data_);
  } else if (known_) {
    known_ = tokenizer();
  } else if (!bpe_.empty()) {
    known_ = data::Tokenizer(read_bpe(bpe_), vocabulary_size_);
  } else {
    known_ = data::Tokenizer::numbers(vocabulary_size_);
  }
}

at::Tensor TextTask::tokens_of(const std::filesystem::path& data) {
  if (vocabulary_ == Vocabulary::tokens) {
    find_tokenizer("");
    return data::map_tokens(data, token_dtype_, known_->size());
  }
  const std::string text = data::read_text(data);
  find_tokenizer(text);
  check_input(vocabulary_ != Vocabulary::bpe || known_->bpe() != nullptr,
              "--bpe is missing: name the folder of vocab.json and merges.txt");
  return known_->encode(text, data.string());
}

TextTask::Tokens TextTask::own_tokens() {
  const std::filesystem::path data(data_);
  if (vocabulary_ == Vocabulary::tokens && sys::is_folder(data))
    return {tokens_of(data / "train.bin"), tokens_of(data / "val.bin")};
  const at::Tensor all = tokens_of(data);
  const auto train = static_cast<std::int64_t>(static_cast<double>(all.size(0)) * training_part);
  return {all.narrow(0, 0, train), all.narrow(0, train, all.size(0) - train)};
}

std::string TextTask::data_fingerprint() {
  return fingerprint_of_tensors({tokens_.train, tokens_.validation});
}

double TextTask::activations() const {
  auto tokens = static_cast<double>(options_.batch) * static_cast<double>(block_) /
                static_cast<double>(ranks_ * options_.accumulate);
  // Inputs of the linear layers and norms of a block, plus queries, keys and values: 16 widths.
  constexpr double widths = 1 + 1 + 3 + 1 + 1 + 1 + 4 + 4;
  auto layers = static_cast<double>(layers_);
  return tokens *
         (layers * widths * static_cast<double>(width_) + static_cast<double>(known_->size()));
}

double TextTask::flops_per_sample() const {
  // A multiplication and an addition, once in forward and twice in backward.
  constexpr double each = 2 * 3;
  const auto tokens = static_cast<double>(block_);
  const double pairs = 2 * static_cast<double>(layers_ * width_) * tokens;  // scores, and values
  return each * tokens * (parameters_of_token() + pairs);
}

std::int64_t TextTask::steps_per_epoch() const {
  std::int64_t tokens = options_.batch * block_;
  return std::max<std::int64_t>(1, (tokens_.train.size(0) + tokens - 1) / tokens);
}

Batch TextTask::batch(std::int64_t step) {
  at::Generator generator = at::detail::createCPUGenerator(stream_seed(options_.seed, step));
  return training_->draw(options_.batch / ranks_, generator, rank_, ranks_);
}

// With a large vocabulary, the logits need most of the memory of an evaluation.
std::int64_t TextTask::rows_at_once() const {
  constexpr std::int64_t most_logits = 1 << 23;  // 32 MiB
  const std::int64_t logits_of_row = block_ * known_->size();
  return std::clamp<std::int64_t>(most_logits / logits_of_row, 1, evaluation_rows());
}

std::int64_t TextTask::validation_samples() const {
  return static_cast<std::int64_t>(*validation_->size());
}

Batch TextTask::validation(std::span<const std::size_t> samples) {
  return validation_->get_batch({samples.data(), samples.size()});
}

double TextTask::weight_of(const Batch& batch) const {
  return static_cast<double>(data::count_targets(batch.target));
}

std::vector<std::pair<std::string, std::string>> TextTask::results() const {
  const bool is_too_large = vocabulary_ == Vocabulary::tokens || known_->size() > most_of_bigram;
  if (tokens_.train.size(0) == 0 || is_too_large) return {};
  double bigram = data::bigram_cross_entropy(tokens_.train, tokens_.validation, known_->size());
  return {{"bigram", loss_text(bigram)}};
}

std::string TextTask::sample(std::int64_t length) {
  return sample_by(
      length, [this](const at::Tensor& ids, std::int64_t count,
                     const models::GenerateOptions& how) { return generate(ids, count, how); });
}

namespace {

// Returns the text of the first token. With a byte-pair encoding, it may be a part of a character
// or have no text.
std::string first_text(const data::Tokenizer& tokenizer, const at::Tensor& tokens) {
  if (tokenizer.bpe() == nullptr) return tokenizer.decode(tokens.narrow(0, 0, 1));
  constexpr std::int64_t longest = 4;  // bytes of a character
  for (std::int64_t count = 1; count <= std::min(longest, tokens.size(0)); ++count) {
    std::string text = tokenizer.decode(tokens.narrow(0, 0, count));
    if (!text.empty() && is_utf8(text)) return text;
  }
  return default_prompt(tokenizer);
}

}  // namespace

std::string TextTask::sample_by(std::int64_t length, const GenerateTokens& generate) {
  std::string text;
  generate_text(generate, block_, *known_,
                {.prompt = first_text(*known_, tokens_.train),
                 .tokens = length,
                 .seed = static_cast<std::uint64_t>(options_.seed),
                 .with_prompt = true},
                [&](std::string_view more) {
                  check_interrupt();
                  text += more;
                });
  return text;
}

}  // namespace lockstep::train
