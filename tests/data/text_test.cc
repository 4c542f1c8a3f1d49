#include <lockstep/data/text.h>

#include "data/refusal.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <fstream>

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using test::refusal;

class TextTest : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) {
    const fs::path file = folder_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

  test::TemporaryFolder folder_;
};

TEST_F(TextTest, ReadsAFile) { EXPECT_EQ(read_text(write("a.txt", "one\r\ntwo")), "one\r\ntwo"); }

TEST_F(TextTest, ReadsAFolderInOrderOfPaths) {
  write("b.h", "b");
  write("a/z.h", "az");
  write("a/b/c.h", "abc");
  write("a-b.h", "a-b");
  write("note.txt", "note");
  EXPECT_EQ(read_text(folder_.path(), {".h"}), "a-babcazb");  // '-' sorts before '/'
  EXPECT_EQ(read_text(folder_.path(), {".h", ".txt"}), "a-babcazbnote");
  EXPECT_EQ(read_text(folder_.path()), "a-babcazbnote");
  EXPECT_EQ(read_text(folder_.path(), {"b.h"}), "a-bb");
}

TEST_F(TextTest, ASingleFileNeedsNoExtension) {
  EXPECT_EQ(read_text(write("a.txt", "x"), {".h"}), "x");
}

TEST_F(TextTest, RefusesNothing) {
  const std::string place = "reading " + folder_.path().string();
  EXPECT_EQ(refusal([&] { (void)read_text(folder_ / "absent"); }),
            place + "/absent: expected a file or a folder of text, found nothing with this name");
  EXPECT_EQ(refusal([&] { (void)read_text(write("empty.txt", "")); }),
            place + "/empty.txt: expected some text, found 0 bytes");
  EXPECT_EQ(refusal([&] { (void)read_text(folder_.path(), {".h"}); }),
            place +
                ": expected a text file, or a folder with text files whose names end in .h, "
                "found a folder without such files");
  fs::create_directory(folder_ / "empty");
  EXPECT_EQ(refusal([&] { (void)read_text(folder_ / "empty"); }),
            place +
                "/empty: expected a text file, or a folder with text files, found an empty "
                "folder");
}

TEST_F(TextTest, RefusesWhatIsNoFile) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(refusal([&] { (void)read_text(pipe); }),
            "reading " + pipe.string() + ": expected a file, found a named pipe");
  EXPECT_EQ(refusal([] { (void)read_text("/dev/zero"); }),
            "reading /dev/zero: expected a file, found a device");
}

TEST_F(TextTest, RefusesMoreThanMemoryTakes) {
  const fs::path file = write("large.txt", "x");
  fs::resize_file(file, std::uintmax_t{1} << 43);
  const std::string line = refusal([&] { (void)read_text(file); });
  EXPECT_EQ(line.find("reading " + file.string() + ": expected at most "), 0u) << line;
}

TEST_F(TextTest, SplitsAsNanoGptDoes) {
  const Text text = load_text(write("a.txt", "abcabcabcabcabcabcd"));  // 19: int(19 * 0.9) is 17
  EXPECT_EQ(text.vocabulary.size(), 4);
  EXPECT_EQ(text.vocabulary.decode(text.train), "abcabcabcabcabcab");
  EXPECT_EQ(text.vocabulary.decode(text.validation), "cd");
}

TEST_F(TextTest, SplitsAsAsked) {
  const fs::path file = write("a.txt", "abcd");
  EXPECT_EQ(load_text(file, {.validation = 0.5}).train.size(0), 2);
  EXPECT_EQ(load_text(file, {.validation = 0}).train.size(0), 4);
  EXPECT_EQ(load_text(file, {.validation = 0}).validation.size(0), 0);
  EXPECT_THROW((void)load_text(file, {.validation = 1}), InvalidArgument);
  EXPECT_THROW((void)load_text(file, {.validation = -0.1}), InvalidArgument);
}

TEST_F(TextTest, TokensMayBeBytes) {
  const Text text = load_text(write("a.bin",
                                    "\xff\xfe"
                                    "ab"),
                              {.bytes = true, .validation = 0});
  EXPECT_EQ(text.vocabulary, Vocabulary::bytes());
  EXPECT_TRUE(text.train.equal(at::tensor({255, 254, 97, 98}, at::kByte)));
}

TEST_F(TextTest, TakesAnEarlierVocabulary) {
  const Vocabulary earlier = Vocabulary::characters("abcde");
  const fs::path file = write("a.txt", "bad");
  const Text text = load_text(file, {.vocabulary = earlier, .validation = 0});
  EXPECT_EQ(text.vocabulary, earlier);
  EXPECT_TRUE(text.train.equal(at::tensor({1, 0, 3}, at::kByte)));
  EXPECT_EQ(refusal([&] { (void)load_text(write("b.txt", "a\nb"), {.vocabulary = earlier}); }),
            "reading " + (folder_ / "b.txt").string() +
                ": expected one of the 5 characters of the vocabulary, found U+000A at offset 1 "
                "(line 1, column 2)");
}

}  // namespace
}  // namespace lockstep::data
