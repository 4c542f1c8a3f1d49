#include <lockstep/data/tokenizer.h>

#include "data/refusal.h"
#include "support/small_bpe.h"
#include "support/temporary_folder.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <string>

namespace lockstep::data {
namespace {

using test::refusal;

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
