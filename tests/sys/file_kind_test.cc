#include "sys/file_kind.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::sys {
namespace {

std::string numbers(const std::vector<std::uint32_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), 4 * values.size()};
}

TEST(FileKind, WellKnownFormatsAreRecognized) {
  std::string llm_c = numbers({20240520, 1, 8});
  llm_c.resize(1024 + 16);
  const std::string text = "It was the best of times, it was the worst of times";
  const std::string frame("\x80\x04\x95\x10\0\0\0\0\0\0\0", 11);
  const std::vector<std::pair<std::string, std::string>> cases{
      {std::string("\x93NUMPY\1\0v\0{'descr': '<u2'", 24), "an array of NumPy (.npy)"},
      {"PK\3\4abcd", "a zip archive, such as .npz or a file of torch.save()"},
      {"PAR1abcd", "a Parquet file"},
      {std::string("ARROW1\0\0abcd", 12), "an Arrow file"},
      {numbers({0xffffffff, 16, 16, 0, 0, 0, 0}), "an Arrow stream"},
      {std::string("\x1f\x8b\x08\0abcd\0\3abcdef", 16), "a file compressed by gzip"},
      {std::string("\x02\0\0\0\0\0\0\0{}", 10), "a safetensors file"},
      {std::string("\x02\0\0\0\0\0\0\0{\"", 10), "a safetensors file"},
      {llm_c, "a token file of llm.c, which begins with a header"},
      {frame + std::string(16, '\1'), "a pickle of Python"},
      {text, "text"},
      {std::string(511, 'a') + "ü", "text"},
      {R"({"text": "It was the best of times, it was"})", "JSON"},
  };
  for (const auto& [content, kind] : cases)
    EXPECT_EQ(file_kind(content, content.size()), kind) << content;
  EXPECT_EQ(file_kind("", 0), "");
  EXPECT_EQ(file_kind("abc", 3), "");
}

TEST(FileKind, FilesOfTokensAreNot) {
  std::mt19937 random(3);
  for (const int vocabulary : {2, 256, 50257, 65536})
    for (int i = 0; i < 20'000; ++i) {
      std::string tokens;
      for (int token = 0; token < 64; ++token) {
        const auto value = static_cast<std::uint16_t>(random() % static_cast<unsigned>(vocabulary));
        tokens.append(reinterpret_cast<const char*>(&value), 2);
      }
      ASSERT_EQ(file_kind(tokens, tokens.size()), "") << vocabulary;
    }
}

}  // namespace
}  // namespace lockstep::sys
