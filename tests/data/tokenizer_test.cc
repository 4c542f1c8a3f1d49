#include "data/refusal.h"
#include "support/small_bpe.h"
#include "support/temporary_folder.h"

#include <lockstep/data/tokenizer.h>

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <string>

namespace lockstep::data {
namespace {

using test::refusal;

TEST(Vocabulary, NumbersCharactersInOrder) {
  const Vocabulary vocabulary = Vocabulary::characters("hello ∞ é");
  EXPECT_EQ(vocabulary.size(), 7);
  EXPECT_EQ(vocabulary.to_text(), "characters: ehloé∞");
  const at::Tensor tokens = vocabulary.encode("ohé");
  EXPECT_EQ(tokens.scalar_type(), at::kByte);
  EXPECT_TRUE(tokens.equal(at::tensor({4, 2, 5}, at::kByte)));
  EXPECT_EQ(vocabulary.decode(tokens), "ohé");
  EXPECT_EQ(vocabulary.encode("").numel(), 0);
  EXPECT_EQ(vocabulary.decode(vocabulary.encode("")), "");
}

TEST(Vocabulary, ManyCharactersNeedAWiderDtype) {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += {static_cast<char>(0xc4 + i / 64), static_cast<char>(0x80 + i % 64)};
  const Vocabulary vocabulary = Vocabulary::characters(text);
  EXPECT_EQ(vocabulary.size(), 300);
  const at::Tensor tokens = vocabulary.encode(text);
  EXPECT_TRUE(tokens.equal(at::arange(300, at::kInt)));
  EXPECT_EQ(vocabulary.decode(tokens), text);
}

TEST(Vocabulary, BytesTakeEverything) {
  const Vocabulary vocabulary = Vocabulary::bytes();
  EXPECT_EQ(vocabulary.size(), 256);
  const std::string text = "a\xff\x80\n";
  EXPECT_TRUE(vocabulary.encode(text).equal(at::tensor({97, 255, 128, 10}, at::kByte)));
  EXPECT_EQ(vocabulary.decode(vocabulary.encode(text)), text);
}

TEST(Vocabulary, GoesThroughText) {
  for (const Vocabulary& vocabulary :
       {Vocabulary::bytes(), Vocabulary::characters("b\na ∞:"), Vocabulary::characters("x")}) {
    EXPECT_EQ(Vocabulary::from_text(vocabulary.to_text()), vocabulary);
  }
  EXPECT_EQ(refusal([] { (void)Vocabulary::from_text("characters:ba"); }),
            "reading a vocabulary: expected \"bytes\", or \"characters:\" and characters in "
            "ascending order, found "
            "\"characters:ba\"");
  EXPECT_THROW((void)Vocabulary::from_text(""), BadInput);
  EXPECT_THROW((void)Vocabulary::from_text("characters:"), BadInput);
}

TEST(Vocabulary, NamesACharacterOutsideAndItsPlace) {
  const Vocabulary vocabulary = Vocabulary::characters("abc\né");
  EXPECT_EQ(refusal([&] { (void)vocabulary.encode("ab\néacx", "prompt.txt"); }),
            "reading prompt.txt: expected one of the 5 characters of the vocabulary, found 'x' "
            "(U+0078) at offset 7 (line 2, "
            "column 4)");
  EXPECT_EQ(refusal([&] { (void)vocabulary.encode("\t", "prompt.txt"); }),
            "reading prompt.txt: expected one of the 5 characters of the vocabulary, found U+0009 "
            "at offset 0 (line 1, "
            "column 1)");
  EXPECT_EQ(refusal([&] { (void)vocabulary.encode("a∞", "prompt.txt"); }),
            "reading prompt.txt: expected one of the 5 characters of the vocabulary, found '∞' "
            "(U+221E) at offset 1 (line 1, "
            "column 2)");
}

TEST(Vocabulary, RefusesWhatIsNoUtf8) {
  EXPECT_EQ(refusal([] { (void)Vocabulary::characters("ab\xff", "data.bin"); }),
            "reading data.bin: expected UTF-8 text, found an invalid byte at offset 2 (line 1, "
            "column 3)");
  EXPECT_EQ(refusal([] { (void)Vocabulary::characters("", "empty.txt"); }),
            "reading empty.txt: expected some text, found none");
}

TEST(Vocabulary, RefusesATokenOutside) {
  EXPECT_EQ(refusal<InvalidArgument>([] {
              (void)Vocabulary::characters("ab").decode(at::tensor({1, 2}, at::kLong));
            }),
            "Vocabulary::decode: expected tokens from 0 to 1, found 2");
  EXPECT_THROW((void)Vocabulary::bytes().decode(at::tensor({-1}, at::kLong)), InvalidArgument);
}

TEST(Tokenizer, OfCharactersAndBytesIsTheirVocabulary) {
  const Tokenizer characters = Vocabulary::characters("cab\n");
  EXPECT_EQ(characters.size(), 4);
  EXPECT_EQ(characters.unit(), "character");
  EXPECT_EQ(characters.decode(characters.encode("abc")), "abc");
  ASSERT_NE(characters.vocabulary(), nullptr);
  EXPECT_EQ(characters.bpe(), nullptr);
  const Tokenizer bytes = Vocabulary::bytes();
  EXPECT_EQ(bytes.size(), 256);
  EXPECT_EQ(bytes.unit(), "byte");
}

TEST(Tokenizer, OfBytePairsMayHaveTokensWithoutText) {
  test::TemporaryFolder folder;
  test::write_small_bpe(folder.path());
  const Bpe bpe = Bpe::load(folder / "vocab.json", folder / "merges.txt");
  const Tokenizer own(bpe), padded(bpe, 300);
  EXPECT_EQ(own.size(), bpe.size());
  EXPECT_EQ(padded.size(), 300);
  EXPECT_EQ(own.unit(), "token");
  for (const Tokenizer& one : {own, padded}) {
    EXPECT_TRUE(one.encode("banana cab").equal(bpe.encode("banana cab")));
    EXPECT_EQ(one.decode(one.encode("banana cab")), "banana cab");
  }
  at::Tensor tokens = at::tensor({std::int64_t{299}, own.encode("a")[0].item<std::int64_t>()});
  EXPECT_EQ(padded.decode(tokens), "a");
  EXPECT_EQ(refusal<InvalidArgument>([&] { (void)own.decode(tokens); }),
            "Tokenizer::decode: expected tokens from 0 to 259, found 299");
  EXPECT_EQ(
      refusal([&] { (void)Tokenizer(bpe, 259); }),
      "expected a vocabulary of at least the 260 tokens of the byte-pair encoding, found 259");
}

TEST(Tokenizer, OfNumbersReadsAndWritesThem) {
  const Tokenizer numbers = Tokenizer::numbers(50257);
  EXPECT_TRUE(numbers.encode("464,3290, 318\n").equal(at::tensor({464, 3290, 318}, at::kLong)));
  EXPECT_EQ(numbers.decode(at::tensor({464, 3290})), " 464 3290");
  EXPECT_TRUE(numbers.encode(numbers.decode(at::tensor({0, 50256})))
                  .equal(at::tensor({0, 50256}, at::kLong)));
  EXPECT_EQ(numbers.encode("").size(0), 0);
  EXPECT_EQ(refusal([&] { (void)numbers.encode("464 dog", "the prompt"); }),
            "the prompt: expected token ids from 0 to 50256, found 'dog'");
  EXPECT_EQ(refusal([&] { (void)numbers.encode("50257"); }),
            "text: expected token ids from 0 to 50256, found '50257'");
  EXPECT_EQ(refusal([&] { (void)Tokenizer::numbers(0); }),
            "expected a vocabulary of 1 to 2147483648 tokens, found 0");
}

}  // namespace
}  // namespace lockstep::data
