#include "data/refusal.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <lockstep/data/tokens.h>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace lockstep::data {
namespace {

using test::refusal;

TEST(Tokens, WhatIsWrittenIsMapped) {
  test::TemporaryFolder folder;
  for (at::ScalarType dtype : {at::kUInt16, at::kUInt32}) {
    const std::int64_t most = dtype == at::kUInt16 ? 65535 : 4294967295;
    const at::Tensor tokens = at::tensor({0L, 1L, 40000L, most, 7L}, at::kLong);
    write_tokens(folder / "tokens", tokens, dtype);
    EXPECT_EQ(std::filesystem::file_size(folder / "tokens"), 5 * c10::elementSize(dtype));
    at::Tensor mapped = map_tokens(folder / "tokens", dtype);
    EXPECT_EQ(mapped.scalar_type(), dtype);
    at::Tensor part = mapped.narrow(0, 1, 3);
    mapped.reset();  // the view keeps the file mapped
    EXPECT_TRUE(part.to(at::kLong).equal(tokens.narrow(0, 1, 3)));
  }
}

// Blocks of a mapped file equal blocks of the same tokens in memory.
TEST(Tokens, BlocksAreReadFromTheFile) {
  test::TemporaryFolder folder;
  const at::Tensor tokens = at::randint(50257, {1000}, at::kLong);
  for (at::ScalarType dtype : {at::kUInt16, at::kUInt32}) {
    write_tokens(folder / "tokens", tokens, dtype);
    const at::Tensor mapped = map_tokens(folder / "tokens", dtype, 50257);
    auto drawn = [&](const at::Tensor& from) {
      return RandomBlocks(from, 16).draw(8, at::detail::createCPUGenerator(3), 1, 2);
    };
    EXPECT_TRUE(drawn(mapped).data.equal(drawn(tokens).data));
    EXPECT_TRUE(drawn(mapped).target.equal(drawn(tokens).target));
    SequentialBlocks blocks(mapped, 64), expected(tokens, 64);
    ASSERT_EQ(blocks.size(), expected.size());
    EXPECT_TRUE(blocks.get_batch({0, 15}).target.equal(expected.get_batch({0, 15}).target));
  }
}

TEST(Tokens, FilesThatCannotBeAreOneLine) {
  test::TemporaryFolder folder;
  const std::string file = (folder / "tokens").string();
  auto write = [&](std::size_t bytes) {
    std::ofstream(file, std::ios::binary) << std::string(bytes, '\1');
  };
  write(7);
  EXPECT_EQ(refusal([&] { (void)map_tokens(file); }),
            "reading " + file + ": expected tokens of 2 bytes (UInt16), found a file of 7 bytes");
  write(6);
  EXPECT_EQ(refusal([&] { (void)map_tokens(file, at::kUInt32); }),
            "reading " + file + ": expected tokens of 4 bytes (UInt32), found a file of 6 bytes");
  EXPECT_EQ(refusal([&] { (void)map_tokens(file, at::kUInt16, 200); }),
            "reading " + file + ": expected tokens from 0 to 199, found 257 at index 0");
  write(0);
  EXPECT_EQ(refusal([&] { (void)map_tokens(file); }),
            "reading " + file + ": expected tokens of 2 bytes (UInt16), found a file of 0 bytes");
  EXPECT_NE(refusal([&] { (void)map_tokens(folder.path()); }).find("found a folder"),
            std::string::npos);
  EXPECT_NE(refusal([&] { (void)map_tokens(folder / "none"); }).find("No such file"),
            std::string::npos);
  EXPECT_EQ(refusal<InvalidArgument>([&] { (void)map_tokens(file, at::kLong); }),
            "map_tokens: expected the dtype UInt16 or UInt32, found Long");
}

TEST(Tokens, FilesOfOtherFormatsAreNamed) {
  test::TemporaryFolder folder;
  const std::string file = (folder / "tokens").string();
  const std::vector<std::pair<std::string, std::string>> cases{
      {std::string("\x93NUMPY\1\0v\0{'descr': '<u2'", 24), "an array of NumPy (.npy)"},
      {"PK\3\4" + std::string(60, '\1'), "a zip archive, such as .npz or a file of torch.save()"},
      {"PAR1" + std::string(60, '\1') + "PAR1", "a Parquet file"},
      {std::string("\x1f\x8b\x08\0abcd\0\3abcdef", 16), "a file compressed by gzip"},
      {std::string("\x02\0\0\0\0\0\0\0{}", 10), "a safetensors file"},
      {"BZh91AY&SY" + std::string(30, '\1'), "a file compressed by bzip2"},
      {"\x04\x22\x4d\x18" + std::string(60, '\1'), "a file compressed by lz4"},
      {std::string(257, '\1') + "ustar  " + std::string(248, '\0'), "a tar archive"},
      {std::string("MMIDIDX\0\0\1", 10) + std::string(60, '\1'),
       "an index of Megatron (.idx), whose tokens are in the .bin file beside it"},
      {"FEA1" + std::string(60, '\1'), "a Feather file"},
      {"Obj\1" + std::string(60, '\1'), "an Avro file"},
      {"GGUF" + std::string(60, '\3'), "a GGUF file"},
      {std::string("SQLite format 3\0", 16) + std::string(84, '\1'), "a database of SQLite"},
      {std::string(16, '\0') + "\xde\xc0\xef\xbe" + std::string(44, '\1'), "a database of LMDB"},
      {"\x89PNG\r\n\x1a\n" + std::string(60, '\1'), "a PNG image"},
      {"\x7f"
       "ELF" +
           std::string(60, '\1'),
       "a program or a library"},
      {"It was the best of times, it was the worst of times.", "text"}};
  for (const auto& [content, kind] : cases)
    for (const at::ScalarType dtype : {at::kUInt16, at::kUInt32}) {
      std::ofstream(file, std::ios::binary) << content;
      EXPECT_EQ(refusal([&] { (void)map_tokens(file, dtype); }),
                "reading " + file + ": expected token ids and nothing else, found " + kind +
                    "; with NumPy, write them by tokens.astype(\"uint16\").tofile(path)");
    }
}

TEST(Tokens, OfMoreBytesAreNotTakenForTokensAndZeros) {
  test::TemporaryFolder folder;
  const std::string file = (folder / "tokens").string();
  const at::Tensor tokens = at::arange(1000, at::kLong).remainder_(37);
  for (const at::ScalarType written : {at::kUInt16, at::kInt, at::kLong}) {
    const at::Tensor bytes = tokens.to(written).view(at::kByte);
    std::ofstream(file, std::ios::binary)
        << std::string_view(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
    for (const at::ScalarType read : {at::kUInt16, at::kUInt32}) {
      const bool is_wider = c10::elementSize(written) > c10::elementSize(read);
      const std::string said = refusal([&] { (void)map_tokens(file, read); });
      EXPECT_EQ(said.find("found that every second one is 0") != std::string::npos, is_wider)
          << said;
    }
  }
  // A file of zeros has no recognisable width.
  std::ofstream(file, std::ios::binary) << std::string(4096, '\0');
  EXPECT_EQ(map_tokens(file).size(0), 2048);
}

TEST(Tokens, ATokenThatDoesNotFitIsNotWritten) {
  test::TemporaryFolder folder;
  const std::string file = (folder / "tokens").string();
  EXPECT_EQ(refusal([&] {
              write_tokens(file, at::tensor({1L, 65536L}, at::kLong));
            }),
            "writing " + file + ": expected tokens from 0 to 65535, found 65536 at index 1");
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_THROW(write_tokens(file, at::tensor({1L, -1L}, at::kLong), at::kUInt32), BadInput);
  EXPECT_THROW(write_tokens(file, at::zeros({2, 2}, at::kLong)), InvalidArgument);
}

at::Tensor tokens_up_to(std::int64_t count) { return at::arange(count, at::kInt); }

TEST(RandomBlocks, TargetsAreTheTokensBehind) {
  const RandomBlocks blocks(tokens_up_to(50), 8);
  const auto batch = blocks.draw(6, at::detail::createCPUGenerator(1));
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{6, 8}));
  EXPECT_EQ(batch.data.scalar_type(), at::kLong);
  EXPECT_TRUE(batch.data.is_contiguous() && batch.target.is_contiguous());
  EXPECT_TRUE(batch.target.equal(batch.data + 1));
  EXPECT_TRUE(
      (batch.data - batch.data.narrow(1, 0, 1)).equal(at::arange(8, at::kLong).expand({6, 8})));
}

TEST(RandomBlocks, EveryStartIsDrawn) {
  const RandomBlocks blocks(tokens_up_to(12), 8);  // possible starts: 0 to 3
  const at::Tensor starts = blocks.draw(200, at::detail::createCPUGenerator(2)).data.select(1, 0);
  EXPECT_EQ(starts.min().item<std::int64_t>(), 0);
  EXPECT_EQ(starts.max().item<std::int64_t>(), 3);
}

TEST(RandomBlocks, RanksTogetherDrawOneGlobalBatch) {
  const RandomBlocks blocks(tokens_up_to(100), 5);
  for (int world = 1; world <= 5; ++world) {
    std::vector<at::Tensor> parts;
    at::Tensor state;
    for (int rank = 0; rank < world; ++rank) {
      at::Generator generator = at::detail::createCPUGenerator(3);
      (void)blocks.draw(60 / world, generator, rank, world);
      parts.push_back(blocks.draw(60 / world, generator, rank, world)
                          .data);  // the second batch: all generators advanced equally
    }
    at::Generator one = at::detail::createCPUGenerator(3);
    (void)blocks.draw(60, one);
    EXPECT_TRUE(at::cat(parts).equal(blocks.draw(60, one).data)) << world;
  }
}

TEST(RandomBlocks, DrawsWhatPythonDraws) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  const auto result = test::run_python(
      "import torch\n"
      "g = torch.Generator().manual_seed(1337)\n"
      "print(*torch.randint(1000 - 8, (20,), generator=g).tolist())");
  const at::Tensor starts = RandomBlocks(tokens_up_to(1000), 8)
                                .draw(20, at::detail::createCPUGenerator(1337))
                                .data.select(1, 0);
  std::ostringstream text;
  for (std::int64_t i = 0; i < 20; ++i)
    text << starts[i].item<std::int64_t>() << (i < 19 ? " " : "\n");
  EXPECT_EQ(text.str(), result.output);
}

TEST(RandomBlocks, RefusesAShortText) {
  EXPECT_EQ(test::refusal([] { RandomBlocks blocks(tokens_up_to(8), 8); }),
            "RandomBlocks: expected a text of more than 8 tokens (the block), found 8");
  EXPECT_NO_THROW(RandomBlocks(tokens_up_to(9), 8));
  EXPECT_THROW(RandomBlocks(at::zeros({9}), 8), InvalidArgument);
  EXPECT_THROW(RandomBlocks(tokens_up_to(9), 0), InvalidArgument);
}

TEST(SequentialBlocks, EveryTokenButTheFirstIsATargetOnce) {
  for (std::int64_t tokens : {2, 3, 8, 9, 10, 16, 17, 33}) {
    SequentialBlocks blocks(tokens_up_to(tokens), 8);
    std::vector<std::int64_t> seen;
    for (std::size_t i = 0; i < *blocks.size(); ++i) {
      const auto block = blocks.get_batch({i});
      for (std::int64_t j = 0; j < 8; ++j) {
        const auto data = block.data[0][j].item<std::int64_t>(),
                   target = block.target[0][j].item<std::int64_t>();
        if (target == SequentialBlocks::no_target) {
          EXPECT_EQ(data, 0);
        } else {
          EXPECT_EQ(target, data + 1);
          seen.push_back(target);
        }
      }
    }
    std::vector<std::int64_t> expected;
    for (std::int64_t token = 1; token < tokens; ++token) expected.push_back(token);
    EXPECT_EQ(seen, expected) << tokens;
    EXPECT_EQ(*blocks.size(), static_cast<std::size_t>((tokens - 1 + 7) / 8));
  }
}

TEST(SequentialBlocks, CountsTargets) {
  SequentialBlocks blocks(tokens_up_to(21), 8);
  EXPECT_EQ(count_targets(blocks.get_batch({0, 1, 2}).target), 20);
  EXPECT_EQ(count_targets(blocks.get_batch({2}).target), 4);
  EXPECT_EQ(count_targets(blocks.get_batch({}).target), 0);
}

TEST(SequentialBlocks, RefusesWhatHasNoTarget) {
  EXPECT_EQ(test::refusal([] { SequentialBlocks blocks(tokens_up_to(1), 8); }),
            "SequentialBlocks: expected a text of two tokens or more, found 1");
  SequentialBlocks blocks(tokens_up_to(9), 8);
  EXPECT_THROW((void)blocks.get_batch({1}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
