#include <lockstep/checkpoint/safetensors.h>

#include <lockstep/base/error.h>

#include "checkpoint/small_disk.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

NamedTensors one_of_each_dtype() {
  NamedTensors tensors;
  for (at::ScalarType dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
                               at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kUInt16,
                               at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn, at::kFloat8_e5m2})
    tensors[c10::toString(dtype)] = torch::arange(7).remainder(2).to(dtype);
  return tensors;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  return a.numel() == 0 ||
         (a.is_contiguous() &&
          std::memcmp(a.const_data_ptr(),
                      b.clone().contiguous().resolve_conj().resolve_neg().const_data_ptr(),
                      a.nbytes()) == 0);
}

TEST(Safetensors, ReadsBackEveryDtype) {
  test::TemporaryFolder folder;
  NamedTensors written = one_of_each_dtype();
  write_safetensors(folder / "a.safetensors", written);
  Safetensors read = read_safetensors(folder / "a.safetensors");
  ASSERT_EQ(read.tensors.size(), written.size());
  for (const auto& [name, tensor] : written)
    EXPECT_TRUE(same(read.tensors.at(name), tensor)) << name;
}

TEST(Safetensors, KeepsShapesStridesNamesAndMetadata) {
  test::TemporaryFolder folder;
  NamedTensors written{
      {"scalar", torch::tensor(3.5)},
      {"empty", torch::empty({0, 4})},
      {"transposed", torch::arange(6).view({2, 3}).t()},
      {"expanded", torch::arange(3).expand({2, 3})},
      {"conjugate", torch::complex(torch::ones(2), torch::ones(2)).conj()},
      {"negative", torch::imag(torch::complex(torch::ones(2), torch::ones(2)).conj())},
      {"zeros without memory", torch::_efficientzerotensor({3}, torch::kFloat)},
      {"quotes \"and\" ü", torch::ones(1)}};
  Metadata metadata{{"format", "pt"}, {"line\nbreak", "tab\t"}};
  write_safetensors(folder / "a.safetensors", written, metadata);
  Safetensors read = read_safetensors(folder / "a.safetensors");
  EXPECT_EQ(read.metadata, metadata);
  for (const auto& [name, tensor] : written)
    EXPECT_TRUE(same(read.tensors.at(name), tensor)) << name;
}

TEST(Safetensors, TheMetadataCanBeReadAlone) {
  test::TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors", {{"one", torch::ones(3)}}, {{"key", "value"}});
  Safetensors read = read_safetensors(folder / "a.safetensors", {.tensors = false});
  EXPECT_EQ(read.metadata, (Metadata{{"key", "value"}}));
  EXPECT_TRUE(read.tensors.empty());
  std::ofstream(folder / "b.safetensors") << "no tensors";
  EXPECT_THROW((void)read_safetensors(folder / "b.safetensors", {.tensors = false}), BadInput);
}

TEST(Safetensors, AFileWithoutTensorsIsAFile) {
  test::TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors", {});
  EXPECT_TRUE(read_safetensors(folder / "a.safetensors").tensors.empty());
}

TEST(Safetensors, DataBeginsAligned) {
  test::TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors",
                    {{"odd", torch::ones(3, at::kByte)}, {"wide", torch::ones(3, at::kDouble)}});
  std::ifstream file(folder / "a.safetensors", std::ios::binary);
  std::uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  EXPECT_EQ(length % 8, 0u);
}

// An independent reader of the format, which needs no package.
constexpr const char* python_reader = R"(
import json, struct, sys, torch
raw = open(sys.argv[1], 'rb').read()
(n,) = struct.unpack('<Q', raw[:8])
header = json.loads(raw[8:8 + n])
kinds = {'F32': torch.float32, 'BF16': torch.bfloat16, 'I64': torch.int64, 'BOOL': torch.bool}
print(header.pop('__metadata__')['maker'])
for name in sorted(header):
    entry = header[name]
    begin, end = entry['data_offsets']
    data = bytearray(raw[8 + n + begin:8 + n + end])
    tensor = torch.frombuffer(data, dtype=kinds[entry['dtype']]).view(entry['shape'])
    print(name, entry['dtype'], list(tensor.shape), [float(x) for x in tensor.flatten()])
)";

TEST(Safetensors, PythonReadsTheSameValues) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  test::TemporaryFolder folder;
  NamedTensors tensors{{"b", torch::tensor({1.5f, -2.25f}).to(at::kBFloat16)},
                       {"f", torch::arange(4, at::kFloat).view({2, 2})},
                       {"i", torch::tensor({std::int64_t{1} << 40})},
                       {"t", torch::tensor({true, false})}};
  write_safetensors(folder / "a.safetensors", tensors, {{"maker", "lockstep"}});
  auto result = test::run_python(python_reader, {(folder / "a.safetensors").string()});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output,
            "lockstep\n"
            "b BF16 [2] [1.5, -2.25]\n"
            "f F32 [2, 2] [0.0, 1.0, 2.0, 3.0]\n"
            "i I64 [1] [1099511627776.0]\n"
            "t BOOL [2] [1.0, 0.0]\n");
}

TEST(Safetensors, ADtypeWithoutANameIsRefusedAndLeavesNoFile) {
  test::TemporaryFolder folder;
  EXPECT_THROW(
      write_safetensors(folder / "a.safetensors", {{"z", torch::ones(1, at::kComplexDouble)}}),
      InvalidArgument);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, AFolderThatIsNotThereIsASystemError) {
  test::TemporaryFolder folder;
  EXPECT_THROW(write_safetensors(folder / "no/a.safetensors", {}), SystemError);
  EXPECT_THROW((void)read_safetensors(folder / "no.safetensors"), SystemError);
}

TEST(Safetensors, AFullDiskKeepsTheOldFile) {
  test::TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors", {{"x", torch::ones(2)}});
  {
    test::SmallDisk disk(10'000);
    EXPECT_THROW(write_safetensors(folder / "a.safetensors", {{"x", torch::ones(100'000)}}),
                 SystemError);
  }
  EXPECT_EQ(read_safetensors(folder / "a.safetensors").tensors.at("x").numel(), 2);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// The header of many small tensors takes megabytes.
std::string header_of(std::size_t tensors) {
  std::string header;
  for (std::size_t i = 0; i < tensors; ++i)
    header += (i == 0 ? "{" : ",") + ("\"layer." + std::to_string(i)) +
              R"(.scale":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  return header + "}";
}

TEST(Safetensors, AHundredThousandTensorsAreReadInLinearTime) {
  auto seconds = [](std::size_t tensors) {
    test::TemporaryFolder folder;
    const std::string header = header_of(tensors);
    const std::uint64_t length = header.size();
    std::ofstream(folder / "a", std::ios::binary)
        << std::string_view(reinterpret_cast<const char*>(&length), sizeof length) << header
        << std::string(tensors, '\1');
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(read_safetensors(folder / "a").tensors.size(), tensors);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double few = seconds(10'000), many = seconds(100'000);
  EXPECT_LT(many, 40 * few + 1);  // a quadratic reader would take 100 times as long
  EXPECT_LT(many, 10) << few;
}

TEST(Safetensors, ManyTensorsAreWritten) {
  test::TemporaryFolder folder;
  NamedTensors tensors;
  for (int i = 0; i < 20'000; ++i) tensors["layer." + std::to_string(i)] = torch::ones(1);
  auto start = std::chrono::steady_clock::now();
  write_safetensors(folder / "a", tensors);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(read_safetensors(folder / "a").tensors.size(), tensors.size());
}

TEST(Safetensors, WhatIsNoFileIsRefusedAtOnce) {
  test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto& [path, kind] :
       std::vector<std::pair<std::filesystem::path, std::string>>{{folder / "pipe", "a named pipe"},
                                                                  {folder.path(), "a folder"},
                                                                  {"/dev/zero", "a device"}})
    try {
      (void)read_safetensors(path);
      ADD_FAILURE() << path << " was read";
    } catch (const BadInput& error) {
      EXPECT_EQ(error.what(), "reading " + path.string() + ": expected a file, found " + kind);
    }
}

TEST(Safetensors, TensorsWithoutValuesAreNotWritten) {
  test::TemporaryFolder folder;
  const std::vector<std::pair<at::Tensor, std::string>> cases{
      {at::Tensor(), "undefined"},
      {torch::ones({2}, at::kMeta), "on the meta device"},
      {torch::eye(2).to_sparse(), "sparse or of another layout"}};
  for (const auto& [tensor, what] : cases) try {
      write_safetensors(folder / "a", {{"x", tensor}});
      ADD_FAILURE() << what;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(), "write_safetensors: tensor 'x' must be dense, found " + what);
    }
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
}

TEST(Safetensors, OverwrittenBytesAreFoundAndTheTensorIsNamed) {
  test::TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  write_safetensors(path, {{"first", torch::ones(50)}, {"second", torch::ones(50)}});
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-200, std::ios::end);
  file.put('\x7f');
  file.close();
  try {
    (void)read_safetensors(path);
    FAIL() << "was read";
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find(path.string() + ": tensor 'second' is damaged: "),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
