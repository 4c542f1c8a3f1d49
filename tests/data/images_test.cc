#include "data/idx_file.h"
#include "data/refusal.h"
#include "support/data_folder.h"
#include "support/temporary_folder.h"

#include <lockstep/base/error.h>
#include <lockstep/data/images.h>

#include <gtest/gtest.h>

namespace lockstep::data {
namespace {

Images four() {
  return Images(at::arange(24, at::kByte).view({4, 2, 3}), at::tensor({3, 1, 4, 1}, at::kByte),
                {0.25}, {0.5});
}

TEST(Images, NormalisesWhatItHandsOut) {
  Images images = four();
  EXPECT_EQ(images.size(), 4u);
  const auto batch = images.get_batch({2, 0, 2});
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{3, 1, 2, 3}));
  EXPECT_TRUE(batch.target.equal(at::tensor({4, 3, 4}, at::kLong)));
  const at::Tensor first = (at::arange(6, at::kFloat) / 255 - 0.25) / 0.5;
  EXPECT_TRUE(batch.data[1].equal(first.view({1, 2, 3})));
  EXPECT_TRUE(batch.data[0].equal(batch.data[2]));
}

TEST(Images, GivesAnEmptyBatch) {
  Images images = four();
  EXPECT_EQ(images.get_batch({}).data.sizes(), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(Images, RefusesAnIndexBehindTheEnd) {
  Images images = four();
  EXPECT_EQ(test::refusal<InvalidArgument>([&] {
              (void)images.get_batch({0, 4});
            }),
            "Images: expected an index below 4, found 4");
}

TEST(Images, RefusesTensorsThatDoNotFit) {
  EXPECT_EQ(test::refusal<InvalidArgument>([] {
              Images wrong(at::zeros({4, 2, 3}, at::kByte), at::zeros({3}, at::kByte));
            }),
            "Images: expected bytes [count, channels, height, width] or [count, height, width] and "
            "count labels, found Byte [4, 2, 3] and Byte [3]");
  EXPECT_THROW(Images(at::zeros({4, 2, 3}), at::zeros({4}, at::kByte)), InvalidArgument);
  EXPECT_THROW(Images(at::zeros({4, 6}, at::kByte), at::zeros({4}, at::kByte)), InvalidArgument);
  EXPECT_THROW(Images(at::zeros({4, 3, 2, 2}, at::kByte), at::zeros({4}, at::kByte), {0, 0}),
               InvalidArgument);
}

TEST(Images, NormalisesEachChannelByItself) {
  Images images(at::full({1, 3, 1, 2}, 51, at::kByte), at::zeros({1}, at::kByte), {0, 0.2, 0.4},
                {1, 2, 4});
  const at::Tensor found = images.get_batch({0}).data;
  EXPECT_EQ(found.sizes(), (std::vector<std::int64_t>{1, 3, 1, 2}));
  EXPECT_TRUE(
      at::allclose(found.select(3, 0), at::tensor({0.2, 0.0, -0.05}, at::kFloat).view({1, 3, 1})));
}

using test::Bytes, test::counting, test::idx_bytes, test::refusal, test::write_bytes,
    test::write_compressed;

class MnistTest : public testing::Test {
 protected:
  void write(const std::string& part, std::uint32_t images, const test::Bytes& labels) {
    write_compressed(folder_ / (part + "-images-idx3-ubyte.gz"),
                     idx_bytes(8, {images, 2, 2}, counting(images * 4)));
    write_bytes(folder_ / (part + "-labels-idx1-ubyte"),
                idx_bytes(8, {static_cast<std::uint32_t>(labels.size())}, labels));
  }

  test::TemporaryFolder folder_;
};

TEST_F(MnistTest, ReadsBothParts) {
  write("train", 3, {7, 0, 9});
  write("t10k", 2, {1, 2});
  Images train = mnist(folder_.path());
  Images test = mnist(folder_.path(), {.part = MnistPart::test});
  EXPECT_EQ(train.size(), 3u);
  EXPECT_EQ(test.size(), 2u);
  const auto batch = train.get_batch({1});
  EXPECT_EQ(batch.target.item<std::int64_t>(), 0);
  const at::Tensor expected =
      at::arange(4, 8, at::kFloat).div_(255).sub_(0.1307).div_(0.3081).view({1, 1, 2, 2});
  EXPECT_TRUE(batch.data.equal(expected));
}

TEST_F(MnistTest, RefusesUnequalNumbers) {
  write("train", 3, {7, 0});
  EXPECT_EQ(refusal([&] { (void)mnist(folder_.path()); }),
            "reading " + (folder_ / "train-labels-idx1-ubyte").string() +
                ": expected 3 labels as there are images in " +
                (folder_ / "train-images-idx3-ubyte.gz").string() + ", found 2");
}

TEST_F(MnistTest, RefusesALabelAboveNine) {
  write("train", 3, {7, 17, 0});
  EXPECT_EQ(refusal([&] { (void)mnist(folder_.path()); }),
            "reading " + (folder_ / "train-labels-idx1-ubyte").string() +
                ": expected labels 0 to 9, found 17 at index 1");
}

TEST_F(MnistTest, NamesTheFileThatIsMissing) {
  EXPECT_EQ(refusal([&] { (void)mnist(folder_.path()); }),
            "reading MNIST in " + folder_.path().string() +
                ": expected train-images-idx3-ubyte or train-images-idx3-ubyte.gz, found neither");
}

TEST_F(MnistTest, APathThatLeadsNowhereIsASystemError) {
  std::filesystem::create_symlink("loop", folder_ / "loop");
  EXPECT_THROW((void)mnist(folder_ / "loop"), SystemError);
}

TEST(Mnist, TheOriginalFiles) {
  const auto folder = test::data_file("mnist");
  if (!folder) GTEST_SKIP() << test::no_data("mnist");
  Images test = mnist(*folder, {.part = MnistPart::test});
  ASSERT_EQ(test.size(), 10000u);
  EXPECT_TRUE(
      test.labels().narrow(0, 0, 10).equal(at::tensor({7, 2, 1, 0, 4, 1, 4, 9, 5, 9}, at::kLong)));
  const Images train = mnist(*folder);
  ASSERT_EQ(train.size(), 60000u);
  // The normalisation uses the mean and standard deviation of this set.
  const at::Tensor pixels = train.pixels().to(at::kDouble).div_(255);
  EXPECT_NEAR(pixels.mean().item<double>(), 0.1307, 1e-4);
  EXPECT_NEAR(pixels.std().item<double>(), 0.3081, 1e-4);
}

// Returns records whose pixels are the record's number plus the channel.
Bytes records(int count, int first = 0) {
  Bytes bytes;
  for (int i = first; i < first + count; ++i) {
    bytes.push_back(static_cast<std::uint8_t>(i % 10));
    for (int pixel = 0; pixel < 3072; ++pixel)
      bytes.push_back(static_cast<std::uint8_t>(i + pixel / 1024));
  }
  return bytes;
}

TEST(Cifar, ReadsBothPartsPlainAndCompressed) {
  test::TemporaryFolder folder;
  test::write_bytes(folder / "data_batch_1.bin", records(3));
  test::write_compressed(folder / "data_batch_2.bin.gz", records(2, 3));
  test::write_bytes(folder / "test_batch.bin", records(4));
  Images train = cifar10(folder.path());
  EXPECT_EQ(train.size(), 5u);
  EXPECT_EQ(cifar10(folder.path(), {.part = CifarPart::test}).size(), 4u);
  const auto batch = train.get_batch({4, 0});
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{2, 3, 32, 32}));
  EXPECT_TRUE(batch.target.equal(at::tensor({4, 0}, at::kLong)));
  const double blue = (6 / 255.0 - 0.4465) / 0.2616;
  EXPECT_NEAR(batch.data[0][2][31][31].item<double>(), blue, 1e-6);
  const double red = (4 / 255.0 - 0.4914) / 0.2470;
  EXPECT_NEAR(batch.data[0][0][0][0].item<double>(), red, 1e-6);
}

TEST(Cifar, RefusesWhatIsMissingOrDamagedInOneLine) {
  test::TemporaryFolder folder;
  const std::string where = "reading CIFAR-10 in " + folder.path().string();
  auto refused = [&](CifarPart part = CifarPart::train) {
    return refusal([&] { (void)cifar10(folder.path(), {.part = part}); });
  };
  EXPECT_EQ(refused(), where + ": expected data_batch_1.bin or data_batch_1.bin.gz, found neither");
  EXPECT_EQ(refused(CifarPart::test),
            where + ": expected test_batch.bin or test_batch.bin.gz, found neither");
  test::write_bytes(folder / "data_batch_1.bin", records(1));
  test::write_bytes(folder / "data_batch_3.bin", records(1));
  EXPECT_EQ(refused(), where +
                           ": expected data_batch_2.bin or data_batch_2.bin.gz before "
                           "data_batch_3.bin, found neither");
  const std::string second = (folder / "data_batch_2.bin").string();
  Bytes damaged = records(2);
  damaged.pop_back();
  test::write_bytes(second, damaged);
  EXPECT_EQ(refused(), "reading " + second + ": expected records of 3073 bytes, found 6145 bytes");
  test::write_bytes(second, {});
  EXPECT_EQ(refused(), "reading " + second + ": expected records of 3073 bytes, found 0 bytes");
  damaged = records(2);
  damaged[3073] = 10;
  test::write_bytes(second, damaged);
  EXPECT_EQ(refused(), "reading " + second + ": expected labels 0 to 9, found 10 at index 1");
}

// Reads a subset of the original data in the same format, as one batch.
TEST(Cifar, TheOriginalRecords) {
  const auto data = test::data_file("cifar10");
  if (!data) GTEST_SKIP() << test::no_data("cifar10");
  test::TemporaryFolder folder;
  std::filesystem::create_symlink(*data / "train_subset.bin.gz", folder / "data_batch_1.bin.gz");
  const Images train = cifar10(folder.path());
  EXPECT_GE(*train.size(), 1000u);
  const at::Tensor channels = train.pixels().to(at::kFloat).div_(255).mean({0, 2, 3});
  EXPECT_TRUE(at::allclose(channels, at::tensor({0.4914, 0.4822, 0.4465}, at::kFloat), 0, 0.02))
      << channels;
  EXPECT_EQ(train.labels().bincount().size(0), 10);
}

}  // namespace
}  // namespace lockstep::data
