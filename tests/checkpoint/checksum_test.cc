#include "checkpoint/checksum.h"

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/safetensors.h>

#include "support/fuzz.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#define HWY_WANT_AVX3_DL 1  // as in checksum.cc
#include <hwy/targets.h>
#include <torch/types.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

std::span<const std::byte> bytes_of_text(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Checksum, IsThatOfZlib) {
  EXPECT_EQ(crc32_of({}), 0u);
  EXPECT_EQ(crc32_of(bytes_of_text("123456789")), 0xcbf43926u);  // the check value of CRC-32
  EXPECT_EQ(crc32_of(bytes_of_text("6789"), crc32_of(bytes_of_text("12345"))), 0xcbf43926u);
  EXPECT_EQ(crc32_of({}, 0xcbf43926u), 0xcbf43926u);
}

std::uint32_t by_zlib(std::span<const std::byte> bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(
      ::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Calls check(name) with the kernels of each instruction set that this processor has.
void on_each_target(const std::function<void(const char*)>& check) {
  const auto choose = [](std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  std::size_t targets = 0;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    choose(target);
    check(hwy::TargetName(target));
    ++targets;
  }
  choose(0);  // the default of the host
  EXPECT_GT(targets, 0u);
}

// Compares each kernel with zlib's tables: short lengths at every offset in a cache line.
TEST(Checksum, EveryKernelIsThatOfZlib) {
  test::Random random(7);
  const std::string text = test::random_bytes(random, 64 + 600);
  on_each_target([&](const char* target) {
    for (std::size_t from = 0; from < 64; ++from)
      for (std::size_t size = 1; size <= 600; size += size < 300 ? 1 : 37) {
        const auto bytes = bytes_of_text(text).subspan(from, size);
        const auto before = static_cast<std::uint32_t>(random());
        ASSERT_EQ(crc32_of(bytes, before), by_zlib(bytes, before))
            << target << ", " << size << " bytes from " << from;
      }
  });
}

// Tests kernels that compute checksums while they copy, from and to every offset in a cache line;
// they must write nothing outside of the copy.
TEST(Checksum, EveryKernelCopiesWhatItSumsUp) {
  test::Random random(8);
  const std::string text = test::random_bytes(random, 64 + 600);
  on_each_target([&](const char* target) {
    for (std::size_t place = 0; place < 64; ++place)
      for (std::size_t size = 0; size <= 600; size += size < 300 ? 1 : 37) {
        const std::size_t from = random() % 64;
        alignas(64) std::array<std::byte, 64 + 600 + 64> memory;
        memory.fill(std::byte{0xa5});
        const auto bytes = bytes_of_text(text).subspan(from, size);
        ASSERT_EQ(crc32_of_copied(std::span(memory).subspan(place, size), bytes), by_zlib(bytes, 0))
            << target << ", " << size << " bytes from " << from << " to " << place;
        ASSERT_TRUE(std::ranges::equal(std::span(memory).subspan(place, size), bytes));
        ASSERT_EQ(std::ranges::count(memory, std::byte{0xa5}) -
                      std::ranges::count(bytes, std::byte{0xa5}),
                  std::ssize(memory) - std::ssize(bytes));
      }
  });
}

TEST(Checksum, EveryKernelCopiesLargeTexts) {
  test::Random random(9);
  const std::string text = test::random_bytes(random, (std::size_t{3} << 20) + 77);
  const auto bytes = bytes_of_text(text);
  std::vector<std::byte> copy(text.size() + 64);
  on_each_target([&](const char* target) {
    const std::size_t line = -reinterpret_cast<std::uintptr_t>(copy.data()) % 64;
    for (const std::size_t place : {line, (line + 1) % 64}) {
      const auto to = std::span(copy).subspan(place, text.size());
      std::ranges::fill(copy, std::byte{0});
      EXPECT_EQ(crc32_of_copied(to, bytes), by_zlib(bytes, 0)) << target;
      EXPECT_TRUE(std::ranges::equal(to, bytes)) << target;
    }
  });
}

// Compares with zlib at random offsets and lengths, and continues from random checksums.
TEST(ChecksumFuzz, IsThatOfZlibInLanesToo) {
  for (test::FuzzRounds rounds("crc32"); rounds.next();) {
    const std::string text =
        test::random_bytes(rounds.random(), 1 + test::below(rounds.random(), 3000));
    const std::size_t from = test::below(rounds.random(), text.size());
    const auto before = static_cast<std::uint32_t>(rounds.random()());
    const auto bytes = bytes_of_text(text).subspan(from);
    on_each_target([&](const char* target) {
      EXPECT_EQ(crc32_of(bytes, before), by_zlib(bytes, before)) << target;
    });
  }
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Checksum, EveryTensorHasOneThatReadersDoNotSee) {
  test::TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  write_safetensors(path, {{"x", torch::arange(9, at::kByte).add(49)}, {"none", torch::empty(0)}},
                    {{"format", "pt"}});
  const std::string content = content_of(path);
  EXPECT_NE(content.find(R"("crc32.x":"cbf43926")"), std::string::npos) << content;
  EXPECT_NE(content.find(R"("crc32.none":"00000000")"), std::string::npos) << content;
  EXPECT_EQ(read_safetensors(path).metadata, (Metadata{{"format", "pt"}}));
}

// Every changed byte of the data is detected; without verification, the file is read anyway.
TEST(Checksum, EveryChangedByteIsFoundUnlessNobodyLooks) {
  test::TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  write_safetensors(path, {{"x", torch::arange(5)}, {"y", torch::ones(3, at::kByte)}});
  const std::string content = content_of(path);
  for (std::size_t i = content.size() - 43; i < content.size(); ++i) {
    std::string damaged = content;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_THROW((void)read_safetensors(path), BadInput) << i;
    EXPECT_EQ(read_safetensors(path, {.verify = false}).tensors.size(), 2u) << i;
  }
}

TEST(Checksum, FilesWithoutAndWithWrongOnes) {
  test::TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  write_safetensors(path, {{"x", torch::ones(2)}}, {}, {.checksums = false});
  std::string content = content_of(path);
  EXPECT_EQ(content.find("crc32"), std::string::npos);
  EXPECT_EQ(read_safetensors(path).tensors.size(), 1u);

  write_safetensors(path, {{"x", torch::ones(2)}});
  content = content_of(path);
  content.replace(content.find("crc32.x\":\"") + 10, 8, "nonsense");
  std::ofstream(path, std::ios::binary) << content;
  EXPECT_THROW((void)read_safetensors(path), BadInput);
  EXPECT_THROW(write_safetensors(path, {}, {{"crc32.x", "00000000"}}), InvalidArgument);
}

TEST(Checksum, StridedTensorsHaveThatOfTheirFile) {
  test::TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  write_safetensors(path, {{"t", torch::arange(6).view({2, 3}).t()}});
  EXPECT_TRUE(at::equal(read_safetensors(path).tensors.at("t"), torch::arange(6).view({2, 3}).t()));
}

constexpr const char* python_checks = R"(
import json, struct, sys, zlib
raw = open(sys.argv[1], 'rb').read()
(n,) = struct.unpack('<Q', raw[:8])
header = json.loads(raw[8:8 + n])
metadata = header.pop('__metadata__')
for name, entry in sorted(header.items()):
    begin, end = entry['data_offsets']
    print(name, metadata['crc32.' + name] == '%08x' % zlib.crc32(raw[8 + n + begin:8 + n + end]))
)";

TEST(Checksum, PythonFindsTheSame) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  test::TemporaryFolder folder;
  write_safetensors(folder / "a", {{"a", torch::randn(100)}, {"b", torch::randn({2, 3}).t()}});
  auto result = test::run_python(python_checks, {(folder / "a").string()});
  EXPECT_EQ(result.output, "a True\nb True\n");
}

}  // namespace
}  // namespace lockstep::checkpoint
