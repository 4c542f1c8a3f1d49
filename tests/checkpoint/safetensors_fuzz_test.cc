// Damaged or malicious files are read or refused with BadInput; no other error is possible.
#include <lockstep/checkpoint/safetensors.h>

#include <lockstep/base/error.h>

#include "base/format.h"
#include "checkpoint/checksum.h"
#include "checkpoint/safetensors_header.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

using test::below;
using test::FuzzRounds;
using test::mutated;
using test::one_in;
using test::Random;

bool is_control(unsigned char letter) { return letter < 32 || letter == 127; }

struct Sample {
  std::string header, data;
};

std::string checksum_of(const std::string& data, std::uint64_t begin, std::uint64_t end) {
  auto bytes = std::as_bytes(std::span(data)).subspan(begin, end - begin);
  return formatted("{:08x}", crc32_of(bytes));
}

Sample some_sample(Random& random) {
  SafetensorsHeader header;
  std::uint64_t bytes = 0;
  for (auto count = below(random, 4); count > 0; --count) {
    std::vector<std::int64_t> shape{static_cast<std::int64_t>(below(random, 5)), 3};
    auto size = static_cast<std::uint64_t>(shape[0] * 3 * 4);
    header.entries.push_back(
        {"layer." + std::to_string(count) + ".weight", at::kFloat, shape, bytes, bytes + size});
    bytes += size;
  }
  std::string data = test::random_bytes(random, bytes);
  for (const TensorEntry& entry : header.entries)
    if (one_in(random, 2))
      header.metadata["crc32." + entry.name] = checksum_of(data, entry.begin, entry.end);
  if (one_in(random, 3)) header.metadata.insert({{"format", "pt"}, {"step", "100"}});
  return {format_header(header), data};
}

// Makes changes that random bytes hardly ever make: the text is still JSON, but has another
// meaning.
std::string with_other_words(std::string header, Random& random) {
  static const std::vector<std::pair<std::string, std::string>> changes{
      {"3]", "4611686018427387904]"},
      {"3]", "3,0,9223372036854775807,9223372036854775807]"},
      {"3]", "-3]"},
      {"3]", "3.0]"},
      {"3]", "1e999]"},
      {"3]", "[3]]"},
      {"[0,", "[18446744073709551615,"},
      {"[0,", "[-1,"},
      {"[0,", "[0,0,"},
      {"F32", "F16"},
      {"F32", "I128"},
      {"F32", "\\ud800"},
      {"\"dtype\"", "\"shape\""},
      {"layer.1", "layer.2"},
      {"layer.1", "__metadata__"},
      {"{\"d", "{\"more\":{\"deep\":[{}]},\"d"},
      {":", ":" + std::string(2000, '[')},
      {"\"pt\"", "null"},
      {"}", std::string("}\0", 2)},
      {"]", std::string("\0]", 2)},
      {"layer", "\\u001b[31m"},
      {"crc32.", "crc32.crc32."},
      {"\"crc32.", "\"crc32.x\":\"\",\"crc32."},
  };
  const auto& [from, to] = changes[below(random, changes.size())];
  if (auto place = header.find(from); place != std::string::npos)
    header.replace(place, from.size(), to);
  return header;
}

Sample hostile_sample(Random& random) {
  Sample sample = some_sample(random);
  if (one_in(random, 2)) sample.header = with_other_words(sample.header, random);
  if (one_in(random, 2)) sample.header = mutated(sample.header, random);
  if (one_in(random, 4)) sample.data = mutated(sample.data, random);
  return sample;
}

TEST(SafetensorsFuzz, HeadersAreReadOrRefused) {
  std::uint64_t read = 0;
  FuzzRounds rounds("safetensors headers");
  while (rounds.next()) {
    Sample sample = hostile_sample(rounds.random());
    try {
      auto header = parse_header(sample.header, sample.data.size());
      std::uint64_t end = 0;
      for (const TensorEntry& entry : header.entries) {
        EXPECT_EQ(entry.begin, end);
        EXPECT_GE(entry.end, entry.begin);
        end = entry.end;
      }
      EXPECT_EQ(end, sample.data.size());
      ++read;
    } catch (const BadInput&) {
      continue;
    }
  }
  if (!rounds.enough()) return;
  EXPECT_GT(read, rounds.count() / 50);
  EXPECT_LT(read, rounds.count());
}

TEST(SafetensorsFuzz, FilesAreReadOrRefused) {
  const test::TemporaryFolder folder;
  const auto path = folder / "hostile.safetensors";
  std::uint64_t read = 0;
  FuzzRounds rounds("safetensors files");
  while (rounds.next()) {
    Sample sample = hostile_sample(rounds.random());
    std::uint64_t length = sample.header.size();
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    bytes += sample.header + sample.data;
    if (one_in(rounds.random(), 4)) bytes = mutated(bytes, rounds.random());
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      auto found = read_safetensors(path);
      std::size_t total = 0;
      for (const auto& [name, tensor] : found.tensors) total += tensor.nbytes();
      EXPECT_LE(total, bytes.size());
      ++read;
    } catch (const BadInput& error) {
      EXPECT_EQ(std::ranges::count_if(std::string_view(error.what()), is_control), 0);
      EXPECT_LT(std::strlen(error.what()), 2000u);
      EXPECT_NE(std::string(error.what()).find("hostile.safetensors"), std::string::npos)
          << error.what();
    }
  }
  if (rounds.enough()) EXPECT_LT(read, rounds.count());
}

}  // namespace
}  // namespace lockstep::checkpoint
