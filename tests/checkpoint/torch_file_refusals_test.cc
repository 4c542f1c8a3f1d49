// Files that torch.save() does not write, or that contain more than plain values.
#include "checkpoint/torch_python.h"
#include "support/messages.h"
#include "sys/files.h"

#include <lockstep/base/error.h>

#include <filesystem>

namespace lockstep::checkpoint {
namespace {

class RefusedTorchFile : public TorchFile {
 protected:
  void expect(const std::string& script, const std::vector<std::string>& words) const {
    expect_python(script, {path()});
    expect_refusal(words);
  }
  void expect_refusal(const std::vector<std::string>& words) const {
    try {
      (void)read_torch_file(path());
      FAIL() << "expected a refusal";
    } catch (const BadInput& error) {
      const std::string found = error.what();
      EXPECT_EQ(found.find(path()), 0u) << found;
      EXPECT_EQ(found.find('\n'), std::string::npos) << found;
      for (const std::string& word : words) EXPECT_NE(found.find(word), found.npos) << found;
    }
  }
};

TEST_F(RefusedTorchFile, CodeIsNeverExecuted) {
  expect(R"(
import os
class Evil:
    def __reduce__(self): return (os.system, ("touch " + sys.argv[1] + ".owned",))
torch.save({"w": Evil()}, sys.argv[1])
)",
         {"asks for posix.system", "nothing in the file is executed"});
  EXPECT_FALSE(std::filesystem::exists(path() + ".owned"));
  expect("torch.save(torch.nn.Linear(2, 2), sys.argv[1])",
         {"asks for torch.nn.modules.linear.Linear"});
  expect("torch.save({'w': torch.ones(2).to_sparse()}, sys.argv[1])",
         {"asks for torch._utils._rebuild_sparse_tensor"});
}

TEST_F(RefusedTorchFile, OtherFormats) {
  expect("torch.save({'w': torch.ones(2)}, sys.argv[1], _use_new_zipfile_serialization=False)",
         {"expected the zip format of PyTorch 1.6 and later"});
  expect("torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), sys.argv[1])", {"TorchScript"});
  sys::AtomicFile::write(path(), "");
  expect_refusal({"found an empty one"});
  sys::AtomicFile::write(path(), std::string(1000, 'x'));
  expect_refusal({"expected a zip archive that ends with its directory"});
}

// Writes data.pkl and other records into a zip with Python's zipfile.
const std::string other_zip = R"(
import zipfile, pickle
def zipped(pickled, records, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(sys.argv[1], "w", method) as file:
        file.writestr("a/data.pkl", pickled)
        for name, content in records.items():
            file.writestr("a/" + name, content)
def tensor(sizes="K\x03\x85", strides="K\x01\x85", offset="K\x00", numel="K\x03"):
    text = ("\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"
            "X\x01\0\0\0000X\x03\0\0\0cpu" + numel + "tQ" + offset + sizes + strides +
            "\x89ccollections\nOrderedDict\n)RtR.")
    return text.encode("latin1")
)";

TEST_F(RefusedTorchFile, TensorsThatReachTooFar) {
  const std::string zip = other_zip + "zipped(tensor(%), {'data/0': bytes(12)})";
  auto with = [&](const std::string& what) {
    std::string script = zip;
    return script.replace(script.find('%'), 1, what);
  };
  expect_python(with(""), {path()});
  EXPECT_EQ(read_torch_file(path()).toTensor().numel(), 3);
  expect(with("sizes='K\\x04\\x85'"), {"reaches beyond its storage of size 3"});
  expect(with("offset='K\\x01'"), {"reaches beyond its storage of size 3"});
  expect(with("offset='J\\xff\\xff\\xff\\xff'"), {"tensor's offset"});
  expect(with("sizes='J\\xfe\\xff\\xff\\xff\\x85'"), {"is not valid"});
  expect(with("strides='J\\xfe\\xff\\xff\\xff\\x85'"), {"is not valid"});
  expect(with("strides='\\x8a\\x08\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x7f\\x85'"),
         {"reaches beyond"});
  expect(
      with(
          "sizes='\\x8a\\x08\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x7f\\x85', strides='K\\x00\\x85'"),
      {"are too large"});
  expect(with("sizes='\\x8a\\x08\\0\\0\\0\\0\\0\\1\\0\\0\\x85', strides='K\\x00\\x85'"),
         {"larger than the memory"});
  expect(with("sizes='(' + 'K\\x01' * 65 + 't'"), {"at most 64 dims"});
  expect(with("sizes=')'"), {"is not valid"});
  expect(with("numel='K\\x04'"), {"storage '0': expected 16 bytes, found 12"});
  expect(with("numel='\\x8a\\x08\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x7f'"), {"are too large"});
  expect(other_zip + "zipped(tensor(), {'data/1': bytes(12)})", {"no storage '0'"});
}

TEST_F(RefusedTorchFile, ArchivesThatMakeNoSense) {
  expect(other_zip + "zipped(tensor(), {'data/0': bytes(12)}, zipfile.ZIP_DEFLATED)",
         {"is compressed"});
  expect(other_zip + R"(
import warnings; warnings.simplefilter("ignore")
with zipfile.ZipFile(sys.argv[1], "w") as file:
    for content in (tensor(), tensor()):
        file.writestr("a/data.pkl", content)
)",
         {"two records named 'a/data.pkl'"});
  expect(
      other_zip +
          "zipped(tensor(), {'../b': b''}); zipfile.ZipFile(sys.argv[1], 'a').writestr('b/c', b'')",
      {"one folder with a data.pkl"});
  expect(other_zip + "zipped(tensor(), {'data/0': bytes(12), 'byteorder': b'middle'})",
         {"byteorder of little or big, found 'middle'"});
  expect(other_zip + R"(
zipped(tensor(), {'data/0': bytes(12)})
content = bytearray(open(sys.argv[1], 'rb').read())
content[content.index(b'data/0') + 6] ^= 1
open(sys.argv[1], 'wb').write(content)
)",
         {"storage '0' is damaged: expected checksum"});
  expect(other_zip + R"(
zipped(tensor(), {'data/0': bytes(12)})
content = open(sys.argv[1], 'rb').read()
open(sys.argv[1], 'wb').write(content[:-1])
)",
         {"expected a zip archive that ends with its directory"});
}

// Depth, cycles, the memo, and Python integers that do not fit into 64 bits.
TEST_F(RefusedTorchFile, PicklesThatMakeNoSense) {
  auto expect_pickle = [&](const std::string& python, const std::vector<std::string>& words) {
    expect(other_zip + "zipped(" + python + ", {})", words);
  };
  expect_pickle("b'\\x80\\x02' + b']' * 100000 + b'a' * 99999 + b'.'",
                {"nests its values deeper than 100"});
  expect_pickle("b'\\x80\\x02]q\\x00h\\x00a.'", {"a value that contains itself"});
  expect_pickle("b'\\x80\\x02h\\x07.'", {"the memo has no value 7"});
  expect_pickle("b'\\x80\\x02.'", {"expected one value at the end"});
  expect_pickle("b'\\x80\\x02tt.'", {"an opcode without its mark"});
  expect_pickle("b'\\x80\\x02(]e.'", {"an opcode without its operands"});
  expect_pickle("b'\\x80\\x02X\\xff\\xff\\xff\\x7fa.'",
                {"expected 2147483647 more bytes, found 2"});
  expect_pickle("b'\\x80\\x02X\\x01\\0\\0\\0\\xff.'", {"is not UTF-8"});
  expect_pickle("b'I1\\n.'", {"the pickle's byte 0: opcode 0x49"});
  expect_pickle("pickle.dumps(2**80, 2)", {"an integer of at most 8 bytes"});
  expect_pickle("pickle.dumps({(1, 2): 3}, 2)",
                {"a dict's key to be a string or an integer, found a tuple"});
  expect_pickle("b'\\x80\\x02}(K\\x01NK\\x01Nu.'", {"a dict has the key '1' twice"});
  expect_pickle("b'\\x80\\x02ctorch\\nfloat32\\n)R.'", {"found a call of torch.float32"});
  expect_pickle("b'\\x80\\x02K\\x01Q.'", {"expected a storage within a tensor only"});
  expect_pickle("b'\\x80\\x02N.N'", {"bytes after the end: 1"});
}

// 40 lists, each of which contains the previous one twice: each list is built once, and 2^40 names
// are refused.
TEST_F(RefusedTorchFile, SharedValuesAreMadeOnce) {
  expect_python(other_zip + R"(
lists = b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(40))
zipped(b"\x80\x02(]q\x00" + lists + b"t.", {})
)",
                {path()});
  const auto saved = read_torch_file(path());
  EXPECT_EQ(saved.toTupleRef().size(), 41u);
  EXPECT_THROW((void)tensors_in(saved), BadInput);
}

// 2^30 names of up to 8 MB: a dict has one key in many places, and the file has the key once.
TEST_F(RefusedTorchFile, LongNamesOfSharedValues) {
  const auto saved = from_python(R"(
key, x = "k" * (1 << 18), 1
for _ in range(30):
    x = {key: x, "b": x}
torch.save(x, sys.argv[1])
)");
  test::expect_words(test::message_of<BadInput>([&] { (void)tensors_in(saved); }),
                     {"with names of at most 1073741824 bytes, found more"});
}

TEST_F(RefusedTorchFile, WhatCannotBeWritten) {
  auto refusal = [&](const IValue& value) {
    try {
      write_torch_file(path(), value);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  auto values = dict();
  values.insert(0.5, 1);
  test::expect_words(refusal(values), {"keys that are strings or integers, found Double"});
  test::expect_words(refusal(std::string("\xff")), {"UTF-8", "\\xff"});
  test::expect_words(refusal(at::Tensor()), {"undefined"});
  test::expect_words(refusal(at::empty({2}, at::kMeta)), {"meta device"});
  test::expect_words(refusal(at::ones({2, 2}).to_sparse()), {"not strided"});
  test::expect_words(refusal(at::Device("cpu")), {"found a value of type Device"});
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_THROW(write_torch_file(folder_ / "no" / "a.pt", IValue(1)), SystemError);
}

}  // namespace
}  // namespace lockstep::checkpoint
