// Files that are not safetensors, or damaged or malicious ones.
#include <lockstep/checkpoint/safetensors.h>

#include <lockstep/base/error.h>

#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

// Files with one error each, and the part of the message that names the error.
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
        Hostile{"line_behind", "{}\n", 0, "expected only spaces"},
        Hostile{"deep",
                "{\"a\":{\"b\":" + std::string(100000, '[') + std::string(100000, ']') + "}}", 0,
                "nested"},
        Hostile{"list", "{\"a\":" + std::string(100000, '['), 0,
                "expected an object, found a list"},
        Hostile{"list_in_shape", R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1,
                "integers"},
        Hostile{"shape_is_text", R"({"a":{"dtype":"U8","shape":"1","data_offsets":[0,1]}})", 1,
                "integers"},
        Hostile{"dtype_is_object", R"({"a":{"dtype":{},"shape":[1],"data_offsets":[0,1]}})", 1,
                "unknown dtype an object"},
        Hostile{"many_dims",
                "{\"a\":{\"dtype\":\"U8\",\"shape\":[1" + std::string(1'000'000, ',') + "]", 0,
                "not JSON"},
        Hostile{"metadata_twice", R"({"__metadata__":{},"__metadata__":{}})", 0,
                "'__metadata__' twice"},
        Hostile{"metadata_key_twice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, "'a' twice"},
        Hostile{"checksum_of_no_tensor",
                R"({"__metadata__":{"crc32.a":"a505df1b","crc32.b":"a505df1b"},)"
                R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                1, "has a checksum for 'b', but no such tensor"},
        Hostile{"tensor_without_checksum",
                R"({"__metadata__":{"crc32.a":"a505df1b"},)"
                R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                2, "tensor 'b' has no checksum, but other tensors of the file have one"},
        Hostile{"parts_of_tensors",
                R"({"__metadata__":{"DCP_SHARDING_INFO":"{}"},)"
                R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                1, "HuggingFaceStorageWriter"},
        Hostile{"entry_null", R"({"a":null})", 0, "expected an object, found null"},
        Hostile{"metadata_value_null", R"({"__metadata__":{"a":null}})", 0,
                "'a' must be a string, found null"},
        Hostile{"metadata_list", R"({"__metadata__":[]})", 0, "object of strings, found a list"},
        Hostile{"name_with_escape", R"({"\u001b[31m\n":5})", 0, R"('\x1b[31m\n': expected)"},
        Hostile{"long_name", "{\"" + std::string(1'000'000, 'x') + "\":5}", 0,
                "x... (1000000 bytes)': expected"},
        Hostile{"number", R"({"a":5})", 0, "expected an object"},
        Hostile{"unknown_dtype", R"({"a":{"dtype":"F13","shape":[1],"data_offsets":[0,1]}})", 1,
                "unknown dtype \"F13\""},
        Hostile{"no_shape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "has no shape"},
        Hostile{"negative_shape", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
                "integers"},
        Hostile{"fraction", R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1,
                "integers"},
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

TEST(Safetensors, FilesOfOtherFormatsAreNamed) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"PK\3\4 and an archive", "expected a safetensors file, found a zip archive, such as .npz"},
      {"PAR1 and columns", "expected a safetensors file, found a Parquet file"},
      {"It was the best of times, it was the worst of times", "file, found text"},
      {std::string(16, '\7'), "first 8 bytes are the length of a header of at most 100000000"},
  };
  for (const auto& [bytes, message] : cases) expect_refused(bytes, message);
}

// The reference library treats it as no metadata.
TEST(Safetensors, MetadataMayBeNull) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "a", std::ios::binary) << file_of(
      {"", R"({"__metadata__":null,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, ""});
  const Safetensors read = read_safetensors(folder / "a");
  EXPECT_TRUE(read.metadata.empty());
  EXPECT_TRUE(read.tensors.at("a").equal(torch::ones(1, at::kByte)));
}

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
  expect_refused(file_of({"", header(65), 1, ""}), "more than 64 dims");
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
