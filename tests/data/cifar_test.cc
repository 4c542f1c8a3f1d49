#include <lockstep/data/images.h>

#include "data/idx_file.h"
#include "data/refusal.h"
#include "support/data_folder.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

namespace lockstep::data {
namespace {

using test::Bytes, test::refusal;

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
