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
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.is_contiguous() &&
         std::memcmp(a.const_data_ptr(),
                     b.contiguous().resolve_conj().resolve_neg().const_data_ptr(), a.nbytes()) == 0;
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

// The format read by a second, independent program: no package is needed for that.
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

// Files that are wrong in one way each, and a part of the message that says which.
struct Hostile {
  std::string name;
  std::string header;
  std::size_t data_bytes;
  std::string message;
};

class HostileFile : public testing::TestWithParam<Hostile> {};

std::string file_of(const Hostile& hostile) {
  std::uint64_t length = hostile.header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  return bytes + hostile.header + std::string(hostile.data_bytes, '\1');
}

void expect_refused(const std::string& bytes, const std::string& message) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "bad.safetensors", std::ios::binary) << bytes;
  try {
    (void)read_safetensors(folder / "bad.safetensors");
    FAIL() << "was read";
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("bad.safetensors"), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

TEST_P(HostileFile, IsRefusedWithAReason) {
  expect_refused(file_of(GetParam()), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileFile,
    testing::Values(
        Hostile{"empty_header", "", 0, "does not begin"},
        Hostile{"no_object", "[1]", 0, "does not begin"},
        Hostile{"not_json", "{\"a\":", 0, "not JSON"},
        Hostile{"rubbish_behind", "{} x", 0, "not JSON"},
        Hostile{"bad_utf8", "{\"\xff\":1}", 0, "not JSON"},
        Hostile{"twice",
                R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                1, "'a' twice"},
        Hostile{"field_twice",
                R"({"a":{"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,1]}})", 1,
                "'dtype' twice"},
        Hostile{"nul", std::string("{}\0", 3), 0, "NUL at byte 2"},
        Hostile{"object_behind_nul", std::string("{}\0{\"a\":1}", 10), 0, "NUL"},
        Hostile{"nul_in_a_name", std::string("{\"a\0b\":1}", 9), 0, "NUL"},
        Hostile{"line_behind", "{}\n", 0, "expected spaces only"},
        Hostile{"deep",
                "{\"a\":{\"b\":" + std::string(100000, '[') + std::string(100000, ']') + "}}", 0,
                "nested"},
        Hostile{"list", "{\"a\":" + std::string(100000, '['), 0,
                "expected an object, found a list"},
        Hostile{"list_in_shape", R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1,
                "whole numbers"},
        Hostile{"shape_is_text", R"({"a":{"dtype":"U8","shape":"1","data_offsets":[0,1]}})", 1,
                "whole numbers"},
        Hostile{"dtype_is_object", R"({"a":{"dtype":{},"shape":[1],"data_offsets":[0,1]}})", 1,
                "unknown dtype an object"},
        Hostile{"many_dims",
                "{\"a\":{\"dtype\":\"U8\",\"shape\":[1" + std::string(1'000'000, ',') + "]", 0,
                "not JSON"},
        Hostile{"metadata_twice", R"({"__metadata__":{},"__metadata__":{}})", 0,
                "'__metadata__' twice"},
        Hostile{"metadata_key_twice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, "'a' twice"},
        Hostile{"metadata_list", R"({"__metadata__":[]})", 0, "object of strings, found a list"},
        Hostile{"name_with_escape", R"({"\u001b[31m\n":5})", 0, R"('\x1b[31m\n': expected)"},
        Hostile{"long_name", "{\"" + std::string(1'000'000, 'x') + "\":5}", 0,
                "x... (1000000 bytes)': expected"},
        Hostile{"number", R"({"a":5})", 0, "expected an object"},
        Hostile{"unknown_dtype", R"({"a":{"dtype":"F13","shape":[1],"data_offsets":[0,1]}})", 1,
                "unknown dtype \"F13\""},
        Hostile{"no_shape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "has no shape"},
        Hostile{"negative_shape", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
                "whole numbers"},
        Hostile{"fraction", R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1,
                "whole numbers"},
        Hostile{"overflow",
                R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4,
                "more than 2^63"},
        Hostile{"wrap",
                R"({"a":{"dtype":"F32","shape":[9223372036854775807,2],"data_offsets":[0,8]}})", 8,
                "more than 2^63"},
        Hostile{"three_offsets", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1,
                "[begin, end]"},
        Hostile{"backwards", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1,
                "[begin, end]"},
        Hostile{"too_few_bytes", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
                "hold 4 bytes, F32 [2] takes 8"},
        Hostile{"behind_the_end", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 7,
                "describes 8 bytes of data, the file holds 7"},
        Hostile{"rest", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2,
                "describes 1 bytes of data, the file holds 2"},
        Hostile{"hole", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "a hole"},
        Hostile{"overlap",
                R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                3, "overlap"},
        Hostile{"metadata_number", R"({"__metadata__":{"a":1}})", 0, "must be a string"}),
    [](const auto& info) { return info.param.name; });

TEST(Safetensors, FieldsOfAnEntryThatAreNotOursAreIgnored) {
  std::string header =
      R"({"a":{"note":{"x":["y"]},"dtype":"U8","more":null,"shape":[2],"data_offsets":[0,2]}})";
  test::TemporaryFolder folder;
  std::ofstream(folder / "a", std::ios::binary) << file_of({"", header, 2, ""});
  EXPECT_EQ(read_safetensors(folder / "a").tensors.at("a").numel(), 2);
}

TEST(Safetensors, ShapesHaveAtMost64Dimensions) {
  auto header = [](std::size_t dims) {
    std::string ones = "1";
    for (std::size_t i = 1; i < dims; ++i) ones += ",1";
    return "{\"a\":{\"dtype\":\"U8\",\"shape\":[" + ones + "],\"data_offsets\":[0,1]}}";
  };
  test::TemporaryFolder folder;
  std::ofstream(folder / "a", std::ios::binary) << file_of({"", header(64), 1, ""});
  EXPECT_EQ(read_safetensors(folder / "a").tensors.at("a").dim(), 64);
  expect_refused(file_of({"", header(65), 1, ""}), "more than 64 dimensions");
}

// Names of many small tensors are a header of megabytes.
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
    std::ofstream(folder / "a", std::ios::binary) << file_of({"", header_of(tensors), tensors, ""});
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(read_safetensors(folder / "a").tensors.size(), tensors);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double few = seconds(10'000), many = seconds(100'000);
  EXPECT_LT(many, 40 * few + 1);  // of squares it would be 100 times as long
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

TEST(Safetensors, AFileLargerThanMemoryIsRefused) {
  test::TemporaryFolder folder;
  const std::string bytes = std::to_string(std::uint64_t{1} << 43);
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[)" + bytes + R"(],"data_offsets":[0,)" + bytes + "]}}";
  std::ofstream(folder / "a", std::ios::binary) << file_of({"", header, 0, ""});
  std::filesystem::resize_file(folder / "a", 8 + header.size() + (std::uint64_t{1} << 43));
  try {
    (void)read_safetensors(folder / "a");
    FAIL() << "was read";
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find("fits into memory"), std::string::npos)
        << error.what();
  }
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

TEST(Safetensors, EveryTruncationIsRefused) {
  test::TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors",
                    {{"x", torch::ones(3)}, {"y", torch::ones(2, at::kByte)}});
  std::ifstream file(folder / "a.safetensors", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  for (std::size_t length = 0; length < bytes.size(); ++length)
    expect_refused(bytes.substr(0, length), "");
}

TEST(Safetensors, AHeaderLengthBeyondTheBoundAllocatesNothing) {
  std::uint64_t length = ~std::uint64_t{0};
  expect_refused(std::string(reinterpret_cast<const char*>(&length), sizeof length),
                 "at most 100000000");
}

}  // namespace
}  // namespace lockstep::checkpoint
