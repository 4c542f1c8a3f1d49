#include <lockstep/data/bpe.h>

#include "data/gpt2_words.h"
#include "data/refusal.h"
#include "data/utf8.h"
#include "support/data_folder.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>

namespace lockstep::data {
namespace {

// From this offset on, pcre2_match() fails; std::nullopt: nowhere.
std::optional<std::size_t> pcre2_fails_from;

}  // namespace
}  // namespace lockstep::data

// Replaces PCRE2's function in this program.
extern "C" int pcre2_match_8(const void* code, const unsigned char* text, std::size_t bytes,
                             std::size_t offset, std::uint32_t options, void* data, void* context) {
  constexpr int heap_limit = -63;  // PCRE2_ERROR_HEAPLIMIT
  if (lockstep::data::pcre2_fails_from && offset >= *lockstep::data::pcre2_fails_from)
    return heap_limit;
  static const auto next =
      reinterpret_cast<decltype(&pcre2_match_8)>(::dlsym(RTLD_NEXT, "pcre2_match_8"));
  return next(code, text, bytes, offset, options, data, context);
}

namespace lockstep::data {
namespace {

using test::refusal;

std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  Gpt2Words words(text, "text");
  for (auto word = words.next(); !word.empty(); word = words.next()) pieces.emplace_back(word);
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(Gpt2Words, AreThoseOfTheRegularExpression) {
  EXPECT_EQ(pieces_of("Hello world"), Pieces({"Hello", " world"}));
  EXPECT_EQ(pieces_of("it's 'tis we'll I'd've"),
            Pieces({"it", "'s", " '", "tis", " we", "'ll", " I", "'d", "'ve"}));
  EXPECT_EQ(pieces_of("a  b\n\nc \n d"), Pieces({"a", " ", " b", "\n", "\n", "c", " \n", " d"}));
  EXPECT_EQ(pieces_of("x12 34y!?..."), Pieces({"x", "12", " 34", "y", "!?..."}));
  EXPECT_EQ(pieces_of("end  "), Pieces({"end", "  "}));
  EXPECT_EQ(pieces_of(" "), Pieces({" "}));
  EXPECT_EQ(pieces_of("\t\tx"), Pieces({"\t", "\t", "x"}));
  EXPECT_EQ(pieces_of("na\u00efve \u4e2d\u6587\u3000\u0663\u0664 \u2167"),
            Pieces({"na\u00efve", " \u4e2d\u6587", "\u3000", "\u0663\u0664", " \u2167"}));
  EXPECT_EQ(pieces_of("\U0001f600\U0001f600a"), Pieces({"\U0001f600\U0001f600", "a"}));
  EXPECT_EQ(pieces_of("'S"), Pieces({"'", "S"}));
  EXPECT_EQ(pieces_of(""), Pieces());
  // White space as in Unicode 14, in which the file separator and U+180E are not white space.
  EXPECT_EQ(pieces_of("a\u0085\u2028 b\u180e\x1c!"),
            Pieces({"a", "\u0085\u2028", " b", "\u180e\x1c!"}));
}

TEST(Gpt2Words, RefuseWhatIsNoUtf8) {
  EXPECT_EQ(
      refusal([] { (void)pieces_of("ab \xff"); }),
      "reading text: expected UTF-8 text, found an invalid byte at offset 3 (line 1, column 4)");
}

TEST(Gpt2Words, AFailureOfPcre2NamesTheText) {
  pcre2_fails_from = 2;
  const std::string text = refusal([] { (void)pieces_of("ab cd"); });
  pcre2_fails_from.reset();
  EXPECT_EQ(text.find("reading text: PCRE2 cannot split the text into words at offset 2 (line 1, "
                      "column 3): "),
            0u)
      << text;
  EXPECT_EQ(pieces_of("ab cd"), Pieces({"ab", " cd"}));
}

// Returns the character by which GPT-2 spells a byte.
std::string spelled(int byte) {
  auto prints = [](int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); };
  if (prints(byte)) return to_utf8(static_cast<char32_t>(byte));
  char32_t place = 256;
  for (int before = 0; before < byte; ++before) place += prints(before) ? 0 : 1;
  return to_utf8(place);
}

// A vocabulary of all bytes and the results of some merges.
class SmallBpe : public testing::Test {
 protected:
  SmallBpe() {
    for (int byte = 0; byte < 256; ++byte) tokens_.push_back(spelled(byte));
    for (const char* more : {"ab", "abc", "bc", "\u0120a", "aa", "<|endoftext|>"})
      tokens_.emplace_back(more);
  }

  Bpe load(const std::string& merges) {
    std::ofstream vocabulary(folder_ / "vocab.json");
    vocabulary << "{";
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      std::string quoted;
      for (char letter : tokens_[i])
        quoted +=
            letter == '"' || letter == '\\' ? std::string("\\") + letter : std::string(1, letter);
      vocabulary << (i == 0 ? "\"" : ", \"") << quoted << "\": " << i;
    }
    vocabulary << "}";
    vocabulary.close();
    std::ofstream(folder_ / "merges.txt") << merges;
    return Bpe::load(folder_ / "vocab.json", folder_ / "merges.txt");
  }
  std::string refused(const std::string& merges) {
    std::string text = refusal([&] { (void)load(merges); });
    const std::string begin = "reading " + (folder_ / "merges.txt").string();
    EXPECT_TRUE(text.starts_with(begin)) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text.substr(std::min(text.size(), begin.size()));
  }
  std::vector<std::string> spelled_tokens(const Bpe& bpe, const std::string& text) {
    const at::Tensor tokens = bpe.encode(text);
    std::vector<std::string> all;
    for (std::int64_t i = 0; i < tokens.size(0); ++i)
      all.push_back(tokens_[static_cast<std::size_t>(tokens[i].item<std::int64_t>())]);
    return all;
  }

  test::TemporaryFolder folder_;
  std::vector<std::string> tokens_;
};

TEST_F(SmallBpe, MergesTheFirstOfTheListFirst) {
  const Bpe bpe = load("#version: 0.2\nb c\na b\nab c\n");
  EXPECT_EQ(spelled_tokens(bpe, "abc"), Pieces({"a", "bc"}));
  EXPECT_EQ(spelled_tokens(bpe, "abab"), Pieces({"ab", "ab"}));
  const Bpe other = load("a b\nb c\nab c\n");
  EXPECT_EQ(spelled_tokens(other, "abc"), Pieces({"abc"}));
  EXPECT_EQ(spelled_tokens(load("\u0120 a\na a\n"), "aaa aaa"),
            Pieces({"aa", "a", "\u0120a", "aa"}));
}

TEST_F(SmallBpe, EveryTextComesBack) {
  const Bpe bpe = load("a b\n\u0120 a\n");
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i)
      text += to_utf8(static_cast<char32_t>(
          std::vector<unsigned>{32, 97, 98, 10, 39, 115, 0x301, 0x4e2d, 0x1f600,
                                static_cast<unsigned>(random() % 0xd000)}[random() % 10]));
    EXPECT_EQ(bpe.decode(bpe.encode(text)), text);
  }
  EXPECT_EQ(bpe.encode("").size(0), 0);
  EXPECT_EQ(bpe.find("<|endoftext|>"), 261);
  EXPECT_EQ(bpe.find("nothing"), std::nullopt);
  EXPECT_EQ(bpe.decode(at::tensor({261}, at::kInt)), "<|endoftext|>");
  EXPECT_EQ(refusal<InvalidArgument>([&] { (void)bpe.decode(at::tensor({262}, at::kInt)); }),
            "Bpe::decode: expected tokens from 0 to 261, found 262");
}

// Two merges may have the same result, with another merge between them in the list.
TEST_F(SmallBpe, AllPlacesOfAMergeComeBeforeWhatTheyMake) {
  tokens_.emplace_back("abcab");
  const Bpe bpe = load("a b\nb c\na bc\nabc ab\nab c\n");
  EXPECT_EQ(spelled_tokens(bpe, "abcabc"), Pieces({"abc", "abc"}));
  EXPECT_EQ(spelled_tokens(bpe, "abcab"), Pieces({"abcab"}));
}

TEST_F(SmallBpe, TablesAreToldApart) {
  const std::uint64_t one = load("a b\nb c\n").fingerprint();
  EXPECT_EQ(load("#version: 0.2\r\na b\r\nb c\r\n\n").fingerprint(), one);
  EXPECT_NE(load("b c\na b\n").fingerprint(), one);
  EXPECT_NE(load("a b\n").fingerprint(), one);
  tokens_.emplace_back("more");
  EXPECT_NE(load("a b\nb c\n").fingerprint(), one);
}

// The time must not be quadratic: a merge must not scan the whole word.
TEST_F(SmallBpe, AWordOfAMillionLettersTakesNoMillionPasses) {
  const Bpe bpe = load("a a\n");
  EXPECT_EQ(bpe.encode(std::string(1'000'001, 'a')).size(0), 500'001);
}

TEST_F(SmallBpe, ABrokenMergeIsOneLineWithFileAndLine) {
  EXPECT_EQ(refused("#version: 0.2\na b\nab\n"),
            ", line 3: expected two tokens separated by a space, found 'ab'");
  EXPECT_EQ(refused("a b c\n"),
            ", line 1: expected two tokens separated by a space, found 'a b c'");
  EXPECT_EQ(refused("a b\n\nb c\n"),
            ", line 2: expected two tokens separated by a space, found ''");
  EXPECT_EQ(refused("a b\nxyz c\n"), ", line 2: 'xyz' is not a token of the vocabulary");
  EXPECT_EQ(refused("ab c\na b\n"),
            ", line 1: 'ab' is neither a single byte nor made by an earlier merge");
  EXPECT_EQ(refused("a c\n"),
            ", line 1: 'ac', which the merge makes, is not a token of the vocabulary");
  EXPECT_EQ(refused("a b\na b\n"), ", line 2: the merge of 'a' and 'b' is listed twice");
  EXPECT_NO_THROW((void)load("a b\r\nab c\r\n\r\n"));
}

// In the words of Qwen and Llama 3, a dot or a bracket may precede letters, and blanks may follow
// line ends.
TEST_F(SmallBpe, MergesAcrossTheWordsOfGpt2AreRefused) {
  for (const char* more :
       {".a", "(a", "a1", "1a", "\u0120\u0120a", "a.", "\u010aa", "'ab", "\u0120.", "1\u0120", "'s",
        "'r", "'re", "12", "..", "\u0120\u0120", "\u010a\u010a"})
    tokens_.emplace_back(more);
  for (const auto& [merge, shown] :
       std::vector<std::pair<std::string, std::string>>{{". a", ".a"},
                                                        {"( a", "(a"},
                                                        {"a 1", "a1"},
                                                        {"1 a", "1a"},
                                                        {"a .", "a."},
                                                        {"\u010a a", "\\na"},
                                                        {"1 \u0120", "1 "}})
    EXPECT_EQ(refused(merge + "\n"), ", line 1: '" + shown +
                                         "' cannot occur in a word of GPT-2: these tables were "
                                         "made for another word pattern, which is not supported");
  EXPECT_NE(refused("a b\n' ab\n").find(", line 2: ''ab' cannot occur in a word"),
            std::string::npos);
  EXPECT_NE(refused("\u0120 a\n\u0120 \u0120a\n").find("cannot occur in a word"),
            std::string::npos);
  EXPECT_NO_THROW((void)load("' s\n' r\n'r e\n1 2\n. .\n\u0120 .\n\u0120 \u0120\n\u010a \u010a\n"));
}

TEST_F(SmallBpe, FilesOfAnotherTokenizerAreRefused) {
  auto beside = [&](const char* name, const std::string& content) {
    std::ofstream(folder_ / name) << content;
    return refusal([&] { (void)load("a b\n"); });
  };
  const std::string nothing = "nothing was refused";
  const std::string plain =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true})";
  const std::string by_pattern = R"({"type": "Sequence", "pretokenizers": [{"type": "Split"}]})";
  const std::string config = "tokenizer_config.json", json = "tokenizer.json";
  EXPECT_EQ(beside(config.c_str(), R"({"tokenizer_class": "GPT2TokenizerFast"})"), nothing);
  EXPECT_EQ(beside(config.c_str(), R"({"model_max_length": 1024})"), nothing);
  EXPECT_NE(beside(config.c_str(), R"({"tokenizer_class": "Qwen2Tokenizer"})")
                .find("tokenizer_config.json: expected a tokenizer with GPT-2's words, found the "
                      "tokenizer_class Qwen2Tokenizer"),
            std::string::npos);
  EXPECT_NE(
      beside(config.c_str(), R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true})")
          .find("found add_prefix_space, which puts a space before each text"),
      std::string::npos);
  EXPECT_EQ(beside(config.c_str(), "{}"), nothing);
  // If no file names a class, transformers uses the class of the model_type.
  EXPECT_EQ(beside("config.json", R"({"model_type": "gpt_bigcode"})"), nothing);
  EXPECT_EQ(beside("config.json", R"({"hidden_size": 64})"), nothing);
  EXPECT_EQ(beside("config.json", R"({"model_type": "llama", "tokenizer_class": "GPT2Tokenizer"})"),
            nothing);
  EXPECT_NE(beside("config.json", R"({"model_type": "llama"})")
                .find("config.json: expected a tokenizer with GPT-2's words, found no "
                      "tokenizer_class, and the model_type llama"),
            std::string::npos);
  EXPECT_EQ(beside(json.c_str(), R"({"normalizer": null, "pre_tokenizer": )" + plain + "}"),
            nothing);
  for (const std::string& other :
       {by_pattern, std::string("null"), std::string(R"({"type": "ByteLevel"})"),
        std::string(R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})")}) {
    const std::string said = beside(json.c_str(), R"({"pre_tokenizer": )" + other + "}");
    EXPECT_NE(said.find("tokenizer.json: expected a tokenizer with GPT-2's words, found the pre_"),
              std::string::npos)
        << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
  const std::string nfc = R"({"normalizer": {"type": "NFC"}, "pre_tokenizer": )" + plain + "}";
  EXPECT_NE(beside(json.c_str(), nfc).find("found the normalizer"), std::string::npos);
  EXPECT_NE(beside(json.c_str(), "[").find("tokenizer.json: expected JSON"), std::string::npos);
}

TEST_F(SmallBpe, AVocabularyThatCannotBeIsNamed) {
  auto refused_vocabulary = [&](const std::string& content) {
    std::ofstream(folder_ / "vocab.json") << content;
    std::ofstream(folder_ / "merges.txt") << "";
    return refusal([&] { (void)Bpe::load(folder_ / "vocab.json", folder_ / "merges.txt"); });
  };
  EXPECT_NE(refused_vocabulary("[1]").find("expected a JSON object"), std::string::npos);
  EXPECT_NE(refused_vocabulary("{\"a\": ").find("expected JSON"), std::string::npos);
  EXPECT_NE(refused_vocabulary(R"({"a": 5})").find("expected a number from 0 to 0, found 5"),
            std::string::npos);
  EXPECT_NE(refused_vocabulary(R"({"a": 0, "b": 0})").find("the number 0 belongs to another token"),
            std::string::npos);
  EXPECT_NE(refused_vocabulary(R"({"a b": 0})").find("expected characters that stand for bytes"),
            std::string::npos);
  EXPECT_NE(refused_vocabulary(R"({"a": 0})").find("found none for byte 0"), std::string::npos);
  EXPECT_NE(refusal([&] {
              (void)Bpe::load(folder_ / "none.json", folder_ / "none.txt");
            }).find("none.json: expected a readable file"),
            std::string::npos);
}

std::vector<std::int64_t> numbers_of(const at::Tensor& tokens) {
  const at::Tensor all = tokens.to(at::kLong);
  return {all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel()};
}

using Numbers = std::vector<std::int64_t>;

class Gpt2 : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = test::data_file("gpt2_bpe");
    if (!folder_) GTEST_SKIP() << test::no_data("gpt2_bpe");
  }
  std::optional<std::filesystem::path> folder_;
};

TEST_F(Gpt2, KnownTexts) {
  const Bpe bpe = Bpe::load(*folder_ / "encoder.json", *folder_ / "vocab.bpe");
  EXPECT_EQ(bpe.size(), 50257);
  EXPECT_EQ(bpe.find("<|endoftext|>"), 50256);
  EXPECT_EQ(numbers_of(bpe.encode("Hello world")), Numbers({15496, 995}));
  EXPECT_EQ(numbers_of(bpe.encode("Hello, world!")), Numbers({15496, 11, 995, 0}));
  EXPECT_EQ(numbers_of(bpe.encode("The quick brown fox jumps over the lazy dog")),
            Numbers({464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290}));
  EXPECT_EQ(numbers_of(bpe.encode("\n")), Numbers({198}));
}

TEST_F(Gpt2, LongTextsAreWhatTheOriginalAlgorithmMakes) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  const auto text_file = test::data_file("tinyshakespeare.txt");
  if (!text_file) GTEST_SKIP() << test::no_data("tinyshakespeare.txt");
  test::TemporaryFolder folder;
  std::ostringstream read;
  read << std::ifstream(*text_file).rdbuf();
  std::string text = read.str().substr(0, 100'000);
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    const unsigned most = i % 3 == 0 ? 0x250 : i % 3 == 1 ? 0x3000 : 0xd7ff;
    text += to_utf8(static_cast<char32_t>(1 + random() % most));
    if (random() % 4 == 0) text += ' ';
  }
  std::ofstream(folder / "text", std::ios::binary) << text;
  const std::string run =
      "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], "
      "run_name='__main__')";
  const auto python =
      test::run_python(run, {LOCKSTEP_SOURCE_DIR "/tests/data/reference_bpe.py",
                             (*folder_ / "encoder.json").string(),
                             (*folder_ / "vocab.bpe").string(), (folder / "text").string()});
  ASSERT_EQ(python.exit_code, 0);
  Numbers expected;
  std::istringstream lines(python.output);
  for (std::int64_t token = 0; lines >> token;) expected.push_back(token);
  const Bpe bpe = Bpe::load(*folder_ / "encoder.json", *folder_ / "vocab.bpe");
  const at::Tensor tokens = bpe.encode(text);
  EXPECT_EQ(numbers_of(tokens), expected);
  EXPECT_EQ(bpe.decode(tokens), text);
}

}  // namespace
}  // namespace lockstep::data
