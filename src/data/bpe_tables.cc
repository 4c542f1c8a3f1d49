#include "data/bpe_tables.h"

#include "base/check.h"
#include "base/visible.h"
#include "data/gpt2_words.h"
#include "data/utf8.h"
#include "sys/bounded_json.h"
#include "sys/plain_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

namespace lockstep::data {
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

// GPT-2's spelling: printing characters of Latin-1 stand for themselves, and the other bytes, in
// their order, for U+0100 and those behind it.
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

// Nothing for a text with a character that stands for no byte.
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

void read_vocabulary(const fs::path& file, BpeTables& tables) {
  auto fail = [&](const std::string& problem) {
    throw BadInput(formatted("reading {}: {}", file.string(), problem));
  };
  nlohmann::json json;
  try {
    json = sys::parse_json(content_of(file));
  } catch (const sys::NotJson& error) {
    fail(formatted("expected a JSON object of tokens and numbers, found: {}", error.what()));
  }
  if (!json.is_object() || json.empty()) fail("expected a JSON object of tokens and numbers");
  const auto count = static_cast<std::int64_t>(json.size());
  tables.bytes.resize(json.size());
  std::vector<bool> is_taken(json.size());
  for (const auto& [token, value] : json.items()) {
    const bool is_number = value.is_number_integer();
    const std::int64_t number = is_number ? value.get<std::int64_t>() : -1;
    if (number < 0 || number >= count)
      fail(formatted("token '{}': expected a number from 0 to {}, found {}", visible(token),
                     count - 1, visible(value.dump())));
    const auto place = static_cast<std::size_t>(number);
    if (is_taken[place])
      fail(formatted("token '{}': the number {} belongs to another token", visible(token), number));
    std::optional<std::string> bytes = bytes_of(token);
    if (!bytes || bytes->empty())
      fail(formatted("token '{}': expected characters that stand for bytes", visible(token)));
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

nlohmann::json json_of(const fs::path& file) {
  try {
    return sys::parse_json(content_of(file));
  } catch (const sys::NotJson& error) {
    throw BadInput(formatted("reading {}: expected JSON, found: {}", file.string(), error.what()));
  }
}

[[noreturn]] void refuse_words(const fs::path& file, const std::string& found) {
  throw BadInput(
      formatted("reading {}: expected a tokenizer with GPT-2's words, found {}; if the vocabulary "
                "and merges are GPT-2's anyway, copy them to a folder without this file",
                file.string(), visible(found, 200)));
}

// The text at `key`, or nothing.
std::string text_at(const nlohmann::json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object.at(key).is_string()) return {};
  return object.at(key).get<std::string>();
}

bool flag_at(const nlohmann::json& object, const char* key, bool otherwise) {
  if (!object.is_object() || !object.contains(key) || !object.at(key).is_boolean())
    return otherwise;
  return object.at(key).get<bool>();
}

// The object in a file; an empty one without the file.
nlohmann::json object_of(const fs::path& file) {
  if (!fs::exists(file)) return nlohmann::json::object();
  nlohmann::json json = json_of(file);
  return json.is_object() ? json : nlohmann::json::object();
}

// ByteLevel's own pattern is GPT-2's, and a normalizer or another pre_tokenizer before it changes
// the words.
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

// Classes of transformers that cut the words of GPT-2 from a vocab.json and a merges.txt.
constexpr std::array<std::string_view, 6> classes_with_gpt2_words{
    "GPT2Tokenizer",    "RobertaTokenizer", "BartTokenizer",
    "CodeGenTokenizer", "LEDTokenizer",     "LongformerTokenizer"};

// Models for which transformers takes one of these where no file names a class.
constexpr std::array<std::string_view, 12> models_with_gpt2_words{
    "gpt2",    "gpt_neo", "gptj",    "gpt_bigcode", "starcoder2", "opt",
    "roberta", "bart",    "codegen", "phi",         "led",        "longformer"};

template <std::size_t size>
bool is_among(const std::array<std::string_view, size>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// The files of the hubs that say how a text becomes words, in transformers' order: tokenizer.json,
// the class in tokenizer_config.json, that in config.json, the model's.
void check_has_gpt2_words(const fs::path& folder) {
  if (const fs::path file = folder / "tokenizer.json"; fs::exists(file))
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

// Tokens that may be part of a merge: single bytes, and what merges before have made.
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
      fail(formatted("'{}' is not a token of the vocabulary", visible(token)));
    if (!made_.contains(found->second))
      fail(formatted("'{}' is neither a single byte nor made by an earlier merge", visible(token)));
    return found->second;
  }

  void add(std::string_view text) {
    const std::size_t blank = text.find(' ');
    if (blank == 0 || blank == std::string_view::npos || blank + 1 == text.size() ||
        text.find(' ', blank + 1) != std::string_view::npos)
      fail(formatted("expected two tokens separated by a space, found '{}'", visible(text)));
    const std::string_view left = text.substr(0, blank), right = text.substr(blank + 1);
    const std::uint64_t key = pair_key(part(left), part(right));
    auto result = tables_.numbers.find(std::string(left) + std::string(right));
    if (result == tables_.numbers.end())
      fail(formatted("'{}{}', which the merge makes, is not a token of the vocabulary",
                     visible(left), visible(right)));
    const std::string& bytes = tables_.bytes[static_cast<std::size_t>(result->second)];
    if (!is_within_gpt2_word(bytes))
      fail(
          formatted("'{}' cannot occur in a word of GPT-2: these tables were made for another word "
                    "pattern, which is not supported",
                    visible(bytes)));
    const auto rank = static_cast<std::int32_t>(tables_.merges.size());
    if (!tables_.merges.try_emplace(key, BpeTables::Merge{rank, result->second}).second)
      fail(formatted("the merge of '{}' and '{}' is listed twice", visible(left), visible(right)));
    made_.insert(result->second);
  }

  const fs::path file_;
  BpeTables& tables_;
  std::unordered_set<std::int32_t> made_;
  std::int64_t line_ = 0;
};

}  // namespace

BpeTables read_bpe_tables(const fs::path& vocabulary, const fs::path& merges) {
  check_has_gpt2_words(vocabulary.parent_path());
  BpeTables tables;
  read_vocabulary(vocabulary, tables);
  MergeReader(merges, tables).read();
  return tables;
}

}  // namespace lockstep::data
