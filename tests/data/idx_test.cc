#include "data/idx.h"

#include "data/idx_file.h"
#include "data/refusal.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

namespace lockstep::data {
namespace {

using test::Bytes, test::counting, test::idx_bytes, test::refusal, test::write_bytes,
    test::write_compressed;

constexpr std::uint8_t bytes_type = 0x08;

class IdxTest : public testing::Test {
 protected:
  // Writes the bytes to a plain and a compressed file, and expects that both are rejected with this
  // ending of the message.
  void expect_refused(const Bytes& bytes, const std::string& ending) {
    for (const char* name : {"plain", "packed.gz"}) {
      const auto file = folder_ / name;
      name[1] == 'l' ? write_bytes(file, bytes) : write_compressed(file, bytes);
      EXPECT_EQ(refusal([&] { (void)read_idx(file); }),
                "reading " + file.string() + ": expected " + ending);
    }
  }

  test::TemporaryFolder folder_;
};

TEST_F(IdxTest, ReadsBytesPlainAndCompressed) {
  const Bytes file = idx_bytes(bytes_type, {2, 3, 5}, counting(30));
  write_bytes(folder_ / "plain.gz", file);  // the name does not matter
  write_compressed(folder_ / "packed", file);
  const at::Tensor expected = at::arange(30, at::kByte).view({2, 3, 5});
  EXPECT_TRUE(read_idx_images(folder_ / "plain.gz").equal(expected));
  EXPECT_TRUE(read_idx_images(folder_ / "packed").equal(expected));
}

TEST_F(IdxTest, ReadsMoreThanOnePiece) {
  const Bytes elements = counting((std::size_t{1} << 22) + 12345);
  write_compressed(folder_ / "large",
                   idx_bytes(bytes_type, {static_cast<std::uint32_t>(elements.size())}, elements));
  const at::Tensor labels = read_idx_labels(folder_ / "large");
  EXPECT_TRUE(labels.equal(at::arange(labels.size(0), at::kLong).remainder(251).to(at::kByte)));
}

TEST_F(IdxTest, ReadsNoElements) {
  write_bytes(folder_ / "file", idx_bytes(bytes_type, {0, 28, 28}, {}));
  EXPECT_EQ(read_idx_images(folder_ / "file").sizes(), (std::vector<std::int64_t>{0, 28, 28}));
}

TEST_F(IdxTest, RefusesAMissingFile) {
  const auto file = folder_ / "absent";
  EXPECT_EQ(
      refusal([&] { (void)read_idx(file); }),
      "reading " + file.string() + ": expected a readable file, found: No such file or directory");
}

TEST_F(IdxTest, RefusesWhatIsNoFile) {
  const auto pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(refusal([&] { (void)read_idx(pipe); }),
            "reading " + pipe.string() + ": expected a file, found a named pipe");
  EXPECT_EQ(refusal([] { (void)read_idx("/dev/zero"); }),
            "reading /dev/zero: expected a file, found a device");
}

TEST_F(IdxTest, RefusesAnotherFormat) {
  const std::string form =
      "an IDX file of bytes (first bytes 00 00 08, the number of dims), found ";
  expect_refused({'P', 'K', 3, 4, 5}, form + "50 4b 03 04");
  expect_refused({0, 0, 0x0d, 1, 0, 0, 0, 0}, form + "00 00 0d 01");
  expect_refused({0, 0, 8, 0, 7}, form + "00 00 08 00");
  expect_refused({0, 0}, "an IDX file (four bytes or more), found 2 bytes");
  expect_refused({}, "an IDX file (four bytes or more), found 0 bytes");
}

TEST_F(IdxTest, RefusesTheOtherKind) {
  write_bytes(folder_ / "labels", idx_bytes(bytes_type, {3}, counting(3)));
  write_bytes(folder_ / "images", idx_bytes(bytes_type, {1, 2, 2}, counting(4)));
  EXPECT_EQ(refusal([&] { (void)read_idx_images(folder_ / "labels"); }),
            "reading " + (folder_ / "labels").string() +
                ": expected an IDX file of images (first bytes 00 00 08 03), found 00 00 08 01");
  EXPECT_EQ(refusal([&] { (void)read_idx_labels(folder_ / "images"); }),
            "reading " + (folder_ / "images").string() +
                ": expected an IDX file of labels (first bytes 00 00 08 01), found 00 00 08 03");
}

TEST_F(IdxTest, RefusesTruncatedFiles) {
  expect_refused(idx_bytes(bytes_type, {2, 3}, counting(5)),
                 "6 bytes of elements, found 5 (truncated)");
  expect_refused({0, 0, 8, 2, 0, 0, 0, 1, 0}, "8 bytes of sizes after the first four, found 5");
  // Sizes that exceed memory are rejected because the file is too short for them.
  expect_refused(idx_bytes(bytes_type, {0x7fffffff, 500}, counting(9)),
                 "1073741823500 bytes of elements, found 9 (truncated)");
  expect_refused(idx_bytes(bytes_type, {0x7fffffff, 0x7fffffff, 0x7fffffff}, {}),
                 "at most 4 TiB of elements, found sizes [2147483647, 2147483647, 2147483647]");
}

TEST_F(IdxTest, RefusesMoreThanTheSizesSay) {
  expect_refused(idx_bytes(bytes_type, {2, 3}, counting(7)), "6 bytes of elements, found more");
}

TEST_F(IdxTest, RefusesADamagedOrTruncatedCompressedFile) {
  const auto file = folder_ / "packed.gz";
  write_compressed(file, idx_bytes(bytes_type, {100, 100}, counting(10000)));
  const auto size = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, size / 2);
  EXPECT_EQ(
      refusal([&] { (void)read_idx(file); }),
      "reading " + file.string() + ": expected an intact file, found: unexpected end of file");

  write_compressed(file, idx_bytes(bytes_type, {100, 100}, counting(10000)));
  {
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(static_cast<std::streamoff>(size) - 6);  // in the checksum
    stream.put('\x5a');
  }
  EXPECT_EQ(refusal([&] { (void)read_idx(file); }),
            "reading " + file.string() + ": expected an intact file, found: incorrect data check");
}

}  // namespace
}  // namespace lockstep::data
