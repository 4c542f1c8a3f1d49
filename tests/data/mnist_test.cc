#include <lockstep/data/images.h>

#include "data/idx_file.h"
#include "data/refusal.h"
#include "support/data_folder.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

namespace lockstep::data {
namespace {

using test::counting, test::idx_bytes, test::refusal, test::write_bytes, test::write_compressed;

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

}  // namespace
}  // namespace lockstep::data
