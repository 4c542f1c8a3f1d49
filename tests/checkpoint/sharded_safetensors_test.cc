// Folders of safetensors with an index, and all dtypes of the format, compared with Python.
#include <lockstep/checkpoint/safetensors.h>

#include "checkpoint/torch_python.h"
#include "support/messages.h"
#include "sys/files.h"

#include <lockstep/base/error.h>

#include <array>
#include <filesystem>
#include <set>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

std::set<std::string> file_names_at(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

NamedTensors some_tensors() {
  return {{"a", at::arange(100.)},
          {"b", at::arange(50).to(at::kLong)},
          {"c", at::ones({3, 4}, at::kHalf)},
          {"d", at::zeros({0, 2})}};
}

TEST(ShardedSafetensors, AreWrittenWithTheIndexOfTheHubs) {
  const test::TemporaryFolder folder;
  const fs::path at = folder / "m";
  write_sharded_safetensors(at, some_tensors(), {{"format", "pt"}}, {.shard_bytes = 500});
  EXPECT_EQ(file_names_at(at), (std::set<std::string>{"model-00001-of-00002.safetensors",
                                                      "model-00002-of-00002.safetensors",
                                                      "model.safetensors.index.json"}));
  EXPECT_EQ(sys::read_file(at / "model.safetensors.index.json"), R"({
  "metadata": {
    "total_size": 824
  },
  "weight_map": {
    "a": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors",
    "c": "model-00002-of-00002.safetensors",
    "d": "model-00002-of-00002.safetensors"
  }
}
)");
  const Safetensors found = read_safetensors(at / "model.safetensors");
  expect_equal(found.tensors, some_tensors());
  EXPECT_EQ(found.metadata, (Metadata{{"format", "pt"}}));
  // A tensor larger than the limit gets its own shard.
  write_sharded_safetensors(at, some_tensors(), {}, {.shard_bytes = 1});
  EXPECT_EQ(file_names_at(at).size(), 5u);
  expect_equal(read_safetensors(at / "model.safetensors").tensors, some_tensors());
  write_sharded_safetensors(at, some_tensors());
  EXPECT_EQ(file_names_at(at), (std::set<std::string>{"model.safetensors"}));
  expect_equal(read_safetensors(at / "model.safetensors").tensors, some_tensors());
}

TEST(ShardedSafetensors, AreRefusedInOneLine) {
  const test::TemporaryFolder folder;
  const fs::path at = folder / "m", index = at / "model.safetensors.index.json";
  write_sharded_safetensors(at, some_tensors(), {}, {.shard_bytes = 500});
  const std::string text = sys::read_file(index);
  auto refusal = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    sys::AtomicFile::write(index, changed.replace(changed.find(from), from.size(), to));
    return test::message_of<BadInput>([&] { (void)read_safetensors(at / "model.safetensors"); });
  };
  const std::string shard = "model-00001-of-00002.safetensors";
  for (const auto& [from, to, expected] : std::vector<std::array<std::string, 3>>{
           {shard, "../x", "expected a file in this folder, found '../x'"},
           {shard, "model-00002-of-00002.safetensors", "tensor 'a' is not in"},
           {"\"d\"", "\"a\"", "'a' twice"},
           {"\"" + shard + "\"", "7", "weight_map.a: expected the name of a file"},
           {"weight_map", "weights", "expected an object with a weight_map"},
           {"{", "[", "model.safetensors.index.json: "},
           {"\"c\"", "\"\xff\"", "model.safetensors.index.json: "}})
    EXPECT_NE(refusal(from, to).find(expected), std::string::npos) << refusal(from, to);
  EXPECT_THROW(write_sharded_safetensors(at, some_tensors(), {}, {.shard_bytes = 0}),
               InvalidArgument);
  EXPECT_THROW(write_sharded_safetensors(at, {{"x", at::ones(1, at::kComplexDouble)}}),
               InvalidArgument);
  EXPECT_EQ(file_names_at(at).size(), 3u);  // nothing was changed
}

// The bytes of each dtype, which Python writes and reads by hand according to the format's README.
TEST_F(TorchFile, EveryDtypeOfSafetensorsGoesBothWays) {
  const std::string format = R"(
import json, struct
names = dict(BOOL="bool", U8="uint8", I8="int8", F8_E5M2="float8_e5m2", F8_E4M3="float8_e4m3fn",
             F8_E8M0="float8_e8m0fnu", I16="int16", U16="uint16", F16="float16", BF16="bfloat16",
             I32="int32", U32="uint32", F32="float32", C64="complex64", F64="float64", I64="int64",
             U64="uint64")
def read(path):
    raw = open(path, "rb").read()
    begin = 8 + struct.unpack("<Q", raw[:8])[0]
    found = {}
    for name, entry in json.loads(raw[8:begin]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            content = bytearray(raw[begin + first:begin + last])
            dtype = getattr(torch, names[entry["dtype"]])
            found[name] = entry["dtype"], torch.frombuffer(content, dtype=torch.uint8).view(dtype)
    return found
)";
  expect_python(format + R"(
header, data = {}, b""
for name, dtype in names.items():
    size = 6 * torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    header[name] = dict(dtype=name, shape=[2, 3], data_offsets=[len(data), len(data) + size])
    data += bytes(i % (2 if name == "BOOL" else 120) for i in range(size))
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
)",
                {path()});
  const Safetensors found = read_safetensors(path());
  EXPECT_EQ(found.tensors.size(), 17u);
  write_safetensors(path("b"), found.tensors);
  expect_python(format + R"(
a, b = read(sys.argv[1]), read(sys.argv[2])
assert len(a) == len(names)
for name in names:
    assert a[name][0] == b[name][0] == name and a[name][1].dtype == getattr(torch, names[name])
    assert bytes(a[name][1].untyped_storage()) == bytes(b[name][1].untyped_storage()), name
)",
                {path(), path("b")});
}

}  // namespace
}  // namespace lockstep::checkpoint
