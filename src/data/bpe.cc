#include <lockstep/data/bpe.h>

#include "base/check.h"
#include "base/escaped.h"
#include "base/fingerprint.h"
#include "data/gpt2_words.h"
#include "data/index_tensor.h"
#include "data/utf8.h"
#include "sys/bounded_json.h"
#include "sys/files.h"
#include "sys/plain_file.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <queue>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace lockstep::data {

// The contents of the two files of a byte-pair encoding, checked.
struct BpeTables {
  struct Merge {
    std::int32_t rank;    // position in the list, from 0
    std::int32_t result;  // the token that the two become
  };

  std::unordered_map<std::string, std::int32_t> numbers;  // by GPT-2's spelling
  std::vector<std::string> bytes;                         // of each token
  std::array<std::int32_t, 256> of_byte{};                // the token of a single byte
  std::unordered_map<std::uint64_t, Merge> merges;        // by pair_key()
};

constexpr std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_bytes = 256 << 20;

std::string content_of(const fs::path& file) {
  try {
    return sys::read_plain_file(file, most_bytes);
  } catch (const SystemError& error) {
    throw BadInput(formatted("reading {}: expected a readable file, found: {}", file.string(),
                             std::generic_category().message(error.error_number())));
  }
}

// Returns GPT-2's spelling of each byte: printable characters of Latin-1 are spelled as themselves,
// and the other bytes, in order, as U+0100, U+0101, ...
std::array<char32_t, 256> spelling_of_bytes() {
  auto prints = [](int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
           (byte >= 0xae && byte <= 0xff);
  };
  std::array<char32_t, 256> spelling{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    spelling[static_cast<std::size_t>(byte)] = prints(byte) ? static_cast<char32_t>(byte) : next++;
  return spelling;
}

// Returns std::nullopt if a character of `token` does not stand for a byte.
std::optional<std::string> bytes_of(std::string_view token) {
  static const std::map<char32_t, char> bytes = [] {
    std::map<char32_t, char> all;
    const auto spelling = spelling_of_bytes();
    for (std::size_t byte = 0; byte < spelling.size(); ++byte)
      all[spelling[byte]] = static_cast<char>(byte);
    return all;
  }();
  std::string found;
  while (!token.empty()) {
    auto character = first_character(token);
    if (!character) return std::nullopt;
    auto byte = bytes.find(character->code_point);
    if (byte == bytes.end()) return std::nullopt;
    found += byte->second;
    token.remove_prefix(character->bytes);
  }
  return found;
}

nlohmann::json json_of(const fs::path& file) {
  try {
    return sys::parse_json(content_of(file));
  } catch (const sys::NotJson& error) {
    throw BadInput(formatted("reading {}: expected JSON, found: {}", file.string(), error.what()));
  }
}

void read_vocabulary(const fs::path& file, BpeTables& tables) {
  auto fail = [&](const std::string& problem) {
    throw BadInput(formatted("reading {}: {}", file.string(), problem));
  };
  const nlohmann::json json = json_of(file);
  if (!json.is_object() || json.empty()) fail("expected a JSON object of tokens and numbers");
  const auto count = static_cast<std::int64_t>(json.size());
  tables.bytes.resize(json.size());
  std::vector<bool> is_taken(json.size());
  for (const auto& [token, value] : json.items()) {
    const bool is_number = value.is_number_integer();
    const std::int64_t number = is_number ? value.get<std::int64_t>() : -1;
    if (number < 0 || number >= count)
      fail(formatted("token '{}': expected a number from 0 to {}, found {}", escaped(token),
                     count - 1, escaped(value.dump())));
    const auto place = static_cast<std::size_t>(number);
    if (is_taken[place])
      fail(formatted("token '{}': the number {} belongs to another token", escaped(token), number));
    std::optional<std::string> bytes = bytes_of(token);
    if (!bytes || bytes->empty())
      fail(formatted("token '{}': expected characters that stand for bytes", escaped(token)));
    is_taken[place] = true;
    tables.bytes[place] = *bytes;
    tables.numbers[token] = static_cast<std::int32_t>(number);
  }
  const auto spelling = spelling_of_bytes();
  for (std::size_t byte = 0; byte < spelling.size(); ++byte) {
    auto found = tables.numbers.find(to_utf8(spelling[byte]));
    if (found == tables.numbers.end())
      fail(formatted("expected a token for each of the 256 bytes, found none for byte {}", byte));
    tables.of_byte[byte] = found->second;
  }
}

[[noreturn]] void refuse_words(const fs::path& file, const std::string& found) {
  throw BadInput(
      formatted("reading {}: expected a tokenizer with GPT-2's words, found {}; if the vocabulary "
                "and merges are GPT-2's anyway, copy them to a folder without this file",
                file.string(), escaped(found, 200)));
}

// Returns the text at `key`; empty if it is missing.
std::string text_at(const nlohmann::json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object.at(key).is_string()) return {};
  return object.at(key).get<std::string>();
}

bool flag_at(const nlohmann::json& object, const char* key, bool otherwise) {
  if (!object.is_object() || !object.contains(key) || !object.at(key).is_boolean())
    return otherwise;
  return object.at(key).get<bool>();
}

// Returns the JSON object in a file; an empty object if the file does not exist.
nlohmann::json object_of(const fs::path& file) {
  if (!sys::exists(file)) return nlohmann::json::object();
  nlohmann::json json = json_of(file);
  return json.is_object() ? json : nlohmann::json::object();
}

// Throws BadInput unless the only pre_tokenizer is ByteLevel, whose pattern is GPT-2's: a
// normalizer or another pre_tokenizer before it would change the words.
void check_tokenizer(const fs::path& file) {
  const nlohmann::json json = json_of(file);
  const bool is_object = json.is_object();
  const nlohmann::json words =
      is_object && json.contains("pre_tokenizer") ? json.at("pre_tokenizer") : nlohmann::json();
  if (text_at(words, "type") != "ByteLevel" || !flag_at(words, "use_regex", true) ||
      flag_at(words, "add_prefix_space", true))
    refuse_words(file, formatted("the pre_tokenizer {}", words.dump()));
  if (json.contains("normalizer") && !json.at("normalizer").is_null())
    refuse_words(file, formatted("the normalizer {}", json.at("normalizer").dump()));
}

// Classes of transformers that use GPT-2's words with a vocab.json and a merges.txt.
constexpr std::array<std::string_view, 6> classes_with_gpt2_words{
    "GPT2Tokenizer",    "RobertaTokenizer", "BartTokenizer",
    "CodeGenTokenizer", "LEDTokenizer",     "LongformerTokenizer"};

// Models for which transformers uses one of these classes if no file names a class.
constexpr std::array<std::string_view, 12> models_with_gpt2_words{
    "gpt2",    "gpt_neo", "gptj",    "gpt_bigcode", "starcoder2", "opt",
    "roberta", "bart",    "codegen", "phi",         "led",        "longformer"};

template <std::size_t size>
bool is_among(const std::array<std::string_view, size>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// Checks that the folder's tokenizer uses GPT-2's words. Looks where transformers looks, in this
// order: tokenizer.json, tokenizer_class of tokenizer_config.json, tokenizer_class of config.json,
// model_type of config.json.
void check_has_gpt2_words(const fs::path& folder) {
  if (const fs::path file = folder / "tokenizer.json"; sys::exists(file))
    return check_tokenizer(file);
  const fs::path tokenizer = folder / "tokenizer_config.json", model = folder / "config.json";
  const nlohmann::json of_tokenizer = object_of(tokenizer), of_model = object_of(model);
  if (flag_at(of_tokenizer, "add_prefix_space", false))
    refuse_words(tokenizer, "add_prefix_space, which puts a space before each text");
  for (const auto& [file, json] :
       {std::pair(tokenizer, of_tokenizer), std::pair(model, of_model)}) {
    std::string name = text_at(json, "tokenizer_class");
    if (name.ends_with("Fast")) name.resize(name.size() - 4);
    if (name.empty()) continue;
    if (!is_among(classes_with_gpt2_words, name))
      refuse_words(file, formatted("the tokenizer_class {}", name));
    return;
  }
  const std::string type = text_at(of_model, "model_type");
  if (!type.empty() && !is_among(models_with_gpt2_words, type))
    refuse_words(model, formatted("no tokenizer_class, and the model_type {}", type));
}

// Tokens that may be operands of a merge: single bytes and results of earlier merges.
class MergeReader {
 public:
  MergeReader(fs::path file, BpeTables& tables) : file_(std::move(file)), tables_(tables) {
    made_.insert(tables.of_byte.begin(), tables.of_byte.end());
  }

  void read() {
    std::string content = content_of(file_);
    std::string_view rest = content;
    while (!rest.empty()) {
      ++line_;
      std::string_view text = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), text.size() + 1));
      if (text.ends_with('\r')) text.remove_suffix(1);
      if (line_ == 1 && text.starts_with("#version")) continue;
      if (text.empty() && rest.find_first_not_of("\r\n") == std::string_view::npos) break;
      add(text);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw BadInput(formatted("reading {}, line {}: {}", file_.string(), line_, problem));
  }

  std::int32_t part(std::string_view token) const {
    auto found = tables_.numbers.find(std::string(token));
    if (found == tables_.numbers.end())
      fail(formatted("'{}' is not a token of the vocabulary", escaped(token)));
    if (!made_.contains(found->second))
      fail(formatted("'{}' is neither a single byte nor made by an earlier merge", escaped(token)));
    return found->second;
  }

  void add(std::string_view text) {
    const std::size_t blank = text.find(' ');
    if (blank == 0 || blank == std::string_view::npos || blank + 1 == text.size() ||
        text.find(' ', blank + 1) != std::string_view::npos)
      fail(formatted("expected two tokens separated by a space, found '{}'", escaped(text)));
    const std::string_view left = text.substr(0, blank), right = text.substr(blank + 1);
    const std::uint64_t key = pair_key(part(left), part(right));
    auto result = tables_.numbers.find(std::string(left) + std::string(right));
    if (result == tables_.numbers.end())
      fail(formatted("'{}{}', which the merge makes, is not a token of the vocabulary",
                     escaped(left), escaped(right)));
    const std::string& bytes = tables_.bytes[static_cast<std::size_t>(result->second)];
    if (!is_within_gpt2_word(bytes, file_.string()))
      fail(
          formatted("'{}' cannot occur in a word of GPT-2: these tables were made for another word "
                    "pattern, which is not supported",
                    escaped(bytes)));
    const auto rank = static_cast<std::int32_t>(tables_.merges.size());
    if (!tables_.merges.try_emplace(key, BpeTables::Merge{rank, result->second}).second)
      fail(formatted("the merge of '{}' and '{}' is listed twice", escaped(left), escaped(right)));
    made_.insert(result->second);
  }

  const fs::path file_;
  BpeTables& tables_;
  std::unordered_set<std::int32_t> made_;
  std::int64_t line_ = 0;
};

BpeTables read_bpe_tables(const fs::path& vocabulary, const fs::path& merges) {
  check_has_gpt2_words(vocabulary.parent_path());
  BpeTables tables;
  read_vocabulary(vocabulary, tables);
  MergeReader(merges, tables).read();
  return tables;
}

}  // namespace

struct Bpe::Tables : BpeTables {
  explicit Tables(BpeTables read) : BpeTables(std::move(read)) {}
};

namespace {

// The tokens of one word. Neighbours are linked in a list and candidate pairs are kept in a heap,
// so the time is O(n log n) for a word of n bytes.
class Word {
 public:
  Word(const BpeTables& tables, std::string_view bytes) : tables_(tables) {
    const auto count = static_cast<std::int32_t>(bytes.size());
    for (std::int32_t i = 0; i < count; ++i)
      links_.push_back({tables.of_byte[static_cast<unsigned char>(bytes[i])], i - 1,
                        i + 1 < count ? i + 1 : -1});
    for (std::int32_t i = 0; i + 1 < count; ++i) offer(i);
  }

  std::vector<std::int32_t> merged() {
    std::vector<Pair> pass;
    while (!waiting_.empty()) {
      // Collect all places of a merge before merging the first of them: merging may create pairs of
      // the same rank (another merge may have made the same token earlier), and such a pair may
      // come before a collected one in the list.
      pass.clear();
      const std::int32_t rank = waiting_.top().rank;
      for (; !waiting_.empty() && waiting_.top().rank == rank; waiting_.pop())
        pass.push_back(waiting_.top());
      for (const Pair& pair : pass)
        if (is_there(pair)) merge(pair);
    }
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i >= 0; i = links_[i].next) tokens.push_back(links_[i].token);
    return tokens;
  }

 private:
  struct Link {
    std::int32_t token, previous, next;  // -1: none
  };
  struct Pair {
    std::int32_t rank, left;  // left: the left neighbour's place
    std::uint64_t key;
    // The queue's top is the pair with the lowest rank; among equal ranks, the leftmost pair.
    bool operator<(const Pair& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  [[nodiscard]] std::uint64_t key_at(std::int32_t left) const {
    return pair_key(links_[left].token, links_[links_[left].next].token);
  }
  void offer(std::int32_t left) {
    if (left < 0 || links_[left].next < 0) return;
    const std::uint64_t key = key_at(left);
    auto merge = tables_.merges.find(key);
    if (merge != tables_.merges.end()) waiting_.push({merge->second.rank, left, key});
  }
  // Returns false if one of the two tokens has been merged since the pair was queued.
  [[nodiscard]] bool is_there(const Pair& pair) const {
    const Link& left = links_[pair.left];
    return left.token >= 0 && left.next >= 0 && key_at(pair.left) == pair.key;
  }
  void merge(const Pair& pair) {
    Link& left = links_[pair.left];
    Link& right = links_[left.next];
    left.token = tables_.merges.at(pair.key).result;
    right.token = -1;
    left.next = right.next;
    if (left.next >= 0) links_[left.next].previous = pair.left;
    offer(left.previous);
    offer(pair.left);
  }

  const BpeTables& tables_;
  std::vector<Link> links_;
  std::priority_queue<Pair> waiting_;
};

// Limits of the cache of words seen before; most words of a text are in the cache.
constexpr std::size_t most_known = 1 << 16;
constexpr std::size_t longest_known = 64;

// Places in a word are 32-bit numbers.
constexpr std::size_t longest_word = std::numeric_limits<std::int32_t>::max();

}  // namespace

Bpe Bpe::load(const std::filesystem::path& vocabulary, const std::filesystem::path& merges) {
  return Bpe(std::make_shared<const Tables>(read_bpe_tables(vocabulary, merges)));
}

std::int64_t Bpe::size() const { return static_cast<std::int64_t>(tables_->bytes.size()); }

std::uint64_t Bpe::fingerprint() const {
  std::uint64_t all = fingerprint_of(size());
  for (const std::string& bytes : tables_->bytes)
    all = combine_fingerprints(all, lockstep::fingerprint(bytes));
  std::uint64_t of_merges = 0;  // in any order
  for (const auto& [pair, merge] : tables_->merges)
    of_merges ^= fingerprint_of(pair, merge.rank, merge.result);
  return combine_fingerprints(all, of_merges);
}

std::optional<std::int64_t> Bpe::find(std::string_view token) const {
  auto found = tables_->numbers.find(std::string(token));
  if (found == tables_->numbers.end()) return std::nullopt;
  return found->second;
}

at::Tensor Bpe::encode(std::string_view text, std::string_view source) const {
  std::vector<std::int32_t> tokens;
  std::unordered_map<std::string_view, std::vector<std::int32_t>> known;
  Gpt2Words words(text, source);
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    check_input(word.size() <= longest_word,
                "{}: expected words of no more than {} bytes, found one of {}", source,
                longest_word, word.size());
    auto seen = known.find(word);
    if (seen != known.end()) {
      tokens.insert(tokens.end(), seen->second.begin(), seen->second.end());
      continue;
    }
    std::vector<std::int32_t> own = Word(*tables_, word).merged();
    tokens.insert(tokens.end(), own.begin(), own.end());
    if (word.size() <= longest_known && known.size() < most_known)
      known.emplace(word, std::move(own));
  }
  return at::tensor(tokens, at::kInt);
}

std::string Bpe::decode(const at::Tensor& tokens) const {
  std::string text;
  for (std::int64_t token : token_list("Bpe::decode", tokens, size()))
    text += tables_->bytes[static_cast<std::size_t>(token)];
  return text;
}

}  // namespace lockstep::data
