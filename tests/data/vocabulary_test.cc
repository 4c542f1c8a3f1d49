#include <lockstep/data/tokenizer.h>

#include "data/refusal.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep::data
