// Files of torch.save(), read and written, compared with PyTorch in Python.
#include "checkpoint/torch_python.h"

#include <lockstep/models/gpt.h>
#include <lockstep/module/state_dict.h>

#include <filesystem>

namespace lockstep::checkpoint {
namespace {

// Values of each common dtype that no other dtype can hold.
TEST_F(TorchFile, EveryDtypeGoesBothWays) {
  const auto saved = from_python(R"(
values = {}
for name in ("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 "
             "complex128 uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz "
             "float8_e5m2fnuz float8_e8m0fnu").split():
    dtype = getattr(torch, name)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(12 * size, dtype=torch.uint8) % (2 if dtype == torch.bool else 120)
    values[name] = raw.view(dtype).view(3, 4).t()
torch.save(values, sys.argv[1])
)");
  const NamedTensors tensors = tensors_in(saved);
  ASSERT_EQ(tensors.size(), 20u);
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef({4, 3})) << name;
    EXPECT_EQ(tensor.strides(), at::IntArrayRef({1, 4})) << name;
    const auto* bytes = static_cast<const std::uint8_t*>(tensor.const_data_ptr());
    for (std::size_t i = 0; i < tensor.nbytes(); ++i)
      ASSERT_EQ(bytes[i], i % (name == "bool" ? 2 : 120)) << name;
  }
  write_torch_file(path("b.pt"), saved);
  expect_python(R"(
a, b = (torch.load(path, weights_only=True) for path in sys.argv[1:])
assert list(a) == list(b) and len(a) == 20
for name in a:
    assert a[name].dtype == b[name].dtype and a[name].stride() == b[name].stride(), name
    assert bytes(a[name].untyped_storage()) == bytes(b[name].untyped_storage()), name
)",
                {path(), path("b.pt")});
}

TEST_F(TorchFile, ValuesOfAStateDictAreRead) {
  const auto saved = from_python(R"(
from collections import OrderedDict
torch.save({"n": 3, "big": -2**40, "lr": 0.1, "name": "höhe", "none": None, "yes": True,
            "no": False, "list": [1, [2.5]], "tuple": (1, "a", ()),
            "ordered": OrderedDict(z=1, a=2), 7: {0: "seven"}, "size": torch.Size([2, 3]),
            "dtype": torch.bfloat16, "device": torch.device("cpu"),
            "second": torch.device("cuda:1"), "first": torch.device("cuda", 0),
            "bytes": b"\x00\x7f\x80\xff", "empty": {}}, sys.argv[1])
)");
  const auto values = saved.toGenericDict();
  EXPECT_EQ(values.at("n").toInt(), 3);
  EXPECT_EQ(values.at("big").toInt(), -(std::int64_t{1} << 40));
  EXPECT_EQ(values.at("lr").toDouble(), 0.1);
  EXPECT_EQ(values.at("name").toStringRef(), "höhe");
  EXPECT_TRUE(values.at("none").isNone());
  EXPECT_TRUE(values.at("yes").toBool());
  EXPECT_FALSE(values.at("no").toBool());
  EXPECT_EQ(values.at("list").toListRef()[1].toListRef()[0].toDouble(), 2.5);
  EXPECT_EQ(values.at("tuple").toTupleRef().elements()[1].toStringRef(), "a");
  EXPECT_EQ(values.at("tuple").toTupleRef().elements()[2].toTupleRef().size(), 0u);
  EXPECT_EQ(values.at("ordered").toGenericDict().begin()->key().toStringRef(), "z");
  EXPECT_EQ(values.at(7).toGenericDict().at(0).toStringRef(), "seven");
  EXPECT_EQ(values.at("size").toTupleRef().elements()[1].toInt(), 3);
  EXPECT_EQ(values.at("dtype").toStringRef(), "torch.bfloat16");
  EXPECT_EQ(values.at("device").toStringRef(), "cpu");
  EXPECT_EQ(values.at("second").toStringRef(), "cuda:1");
  EXPECT_EQ(values.at("first").toStringRef(), "cuda:0");
  EXPECT_TRUE(values.at("bytes").toTensor().equal(torch::tensor({0, 127, 128, 255}, at::kByte)));
  EXPECT_EQ(values.at("empty").toGenericDict().size(), 0u);
}

TEST_F(TorchFile, ValuesThatWeWriteArePythons) {
  auto values = dict(), numbers = dict();
  numbers.insert(0, IValue());
  numbers.insert(std::int64_t{1} << 33, true);
  values.insert("numbers", numbers);
  values.insert("integers", std::vector<std::int64_t>{0, 255, 256, -1, INT32_MIN, INT64_MIN});
  values.insert("lr", 1e-3);
  values.insert("text", std::string("höhe\n\0", 7));
  values.insert("betas", c10::ivalue::Tuple::create({IValue(0.9), IValue(0.999)}));
  values.insert("no", false);
  values.insert("zeros", at::_efficientzerotensor({2}, at::kFloat));  // a tensor without memory
  write_torch_file(path(), values);
  expect_python(R"(
found = torch.load(sys.argv[1], weights_only=True)
assert found.pop("zeros").tolist() == [0, 0]
assert found == {"numbers": {0: None, 2**33: True}, "lr": 1e-3, "text": "höhe\n\0",
                 "integers": [0, 255, 256, -1, -2**31, -2**63],
                 "betas": (0.9, 0.999), "no": False}, found
assert found["no"] is False and found["numbers"][2**33] is True
)",
                {path()});
}

TEST_F(TorchFile, SharedStoragesStayShared) {
  for (const bool map : {false, true}) {
    const auto tensors = tensors_in(from_python(R"(
flat = torch.arange(40.)
weight = torch.nn.Parameter(flat[4:16].view(3, 4))
torch.save({"weight": weight, "tied": weight, "other": flat[10:],
            "wide": torch.ones(1).expand(5), "none": torch.empty(0, 3)}, sys.argv[1])
)",
                                                {.map = map}));
    const at::Tensor weight = tensors.at("weight"), other = tensors.at("other");
    EXPECT_FALSE(weight.requires_grad());
    EXPECT_EQ(weight.storage_offset(), 4);
    EXPECT_EQ(weight.data_ptr(), tensors.at("tied").data_ptr());
    EXPECT_TRUE(weight.is_alias_of(other));
    EXPECT_EQ(tensors.at("wide").stride(0), 0);
    EXPECT_EQ(tensors.at("none").sizes(), at::IntArrayRef({0, 3}));
    weight.fill_(-1);  // a mapping is private: the file is unchanged
    EXPECT_EQ(other[0].item<float>(), -1);
    EXPECT_EQ(tensors_in(read_torch_file(path())).at("weight")[0][0].item<float>(), 4);
  }
  auto values = dict();
  const at::Tensor flat = at::arange(40.);
  values.insert("a", flat.narrow(0, 4, 12).view({3, 4}).t());
  values.insert("b", flat);
  values.insert("bits", flat.view(at::kInt));  // one memory, two dtypes: two storages in the file
  const at::Tensor rows = at::zeros({3, 4});
  values.insert("none", rows.slice(0, 3).slice(1, 2));  // it begins after the end of its storage
  write_torch_file(path(), values);
  EXPECT_EQ(tensors_in(read_torch_file(path())).at("none").sizes(), at::IntArrayRef({0, 2}));
  expect_python(R"(
for mmap in (False, True):
    found = torch.load(sys.argv[1], weights_only=True, mmap=mmap)
    assert found["a"].stride() == (1, 4) and found["a"].storage_offset() == 4
    assert found["a"].untyped_storage().data_ptr() == found["b"].untyped_storage().data_ptr()
    assert torch.equal(found["b"], torch.arange(40.))
    assert torch.equal(found["bits"].view(torch.float32), found["b"])
    assert found["none"].shape == (0, 2)
)",
                {path()});
}

// Each storage starts at a multiple of 64 bytes in the file, so that it can be mapped.
TEST_F(TorchFile, MappedTensorsLieInTheFile) {
  auto values = dict();
  for (const int size : {1, 1000, 70})
    values.insert(std::to_string(size), at::full({size}, size, at::kDouble));
  write_torch_file(path(), values);
  for (const auto& [name, tensor] : tensors_in(read_torch_file(path(), {.map = true}))) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64, 0u);
    EXPECT_TRUE(tensor.equal(at::full_like(tensor, std::stoi(name))));
  }
  // Mapped tensors stay valid after the file is removed.
  at::Tensor kept = tensors_in(read_torch_file(path(), {.map = true})).at("1000");
  std::filesystem::remove(path());
  EXPECT_EQ(kept.sum().item<double>(), 1e6);
}

TEST_F(TorchFile, BigEndianFilesAreTurned) {
  const auto tensors = tensors_in(from_python(R"(
import torch.serialization as s
from torch.utils.serialization import config
values = {"f": torch.arange(5.), "l": torch.arange(3), "b": torch.tensor([True, False]),
          "c": torch.tensor([1 + 2j, -3j]), "h": torch.ones(3, dtype=torch.bfloat16)}
for tensor in values.values():
    tensor.untyped_storage().byteswap(tensor.dtype)
torch.save(values, sys.argv[1])
import zipfile
old = zipfile.ZipFile(sys.argv[1])
records = {item.filename: old.read(item) for item in old.infolist()}
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_STORED) as new:
    for name, content in records.items():
        new.writestr(name, b"big" if name.endswith("byteorder") else content)
assert torch.equal(torch.load(sys.argv[1])["f"], torch.arange(5.))
)",
                                              {.map = true}));
  EXPECT_TRUE(tensors.at("f").equal(at::arange(5.)));
  EXPECT_TRUE(tensors.at("l").equal(at::arange(3)));
  EXPECT_TRUE(tensors.at("b").equal(torch::tensor({true, false})));
  EXPECT_EQ(tensors.at("c")[1].item<c10::complex<float>>(), (c10::complex<float>(0, -3)));
  EXPECT_TRUE(tensors.at("h").equal(at::ones(3, at::kBFloat16)));
}

TEST_F(TorchFile, AModelGoesToPythonAndBack) {
  const models::GptOptions options{
      .layers = 2, .heads = 2, .hidden_size = 8, .context_length = 8, .vocabulary = 11};
  models::Gpt first(options), second(options);
  auto values = dict();
  for (const auto& [name, tensor] : state_dict(*first)) values.insert(name, tensor);
  write_torch_file(path(), values);
  expect_python(R"(
state = torch.load(sys.argv[1], weights_only=True)
assert state["lm_head.weight"].data_ptr() == state["transformer.wte.weight"].data_ptr()
module = torch.nn.Module()
module.load_state_dict(state, strict=False)
torch.save(state, sys.argv[1])
)",
                {path()});
  load_state_dict(*second, tensors_in(read_torch_file(path())));
  for (const auto& [name, tensor] : state_dict(*first))
    EXPECT_TRUE(tensor.equal(state_dict(*second).at(name))) << name;
}

TEST_F(TorchFile, StatesOfSchedulersAreRead) {
  const auto saved = from_python(R"(
optimizer = torch.optim.SGD([torch.ones(2)], lr=0.5)
torch.save([torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5]).state_dict(),
            torch.amp.GradScaler("cpu").state_dict()], sys.argv[1])
)");
  const auto milestones = saved.toListRef()[0].toGenericDict().at("milestones").toGenericDict();
  EXPECT_EQ(milestones.at(3).toInt(), 1);
  EXPECT_EQ(saved.toListRef()[1].toGenericDict().at("scale").toDouble(), 65536);
}

// Attributes of a state_dict() (its _metadata), other pickle protocols, and files without
// checksums.
TEST_F(TorchFile, WhatElsePythonWrites) {
  const auto tensors = tensors_in(from_python(R"(
torch.save(torch.nn.BatchNorm1d(3).state_dict(), sys.argv[1], pickle_protocol=4)
)"));
  EXPECT_EQ(tensors.size(), 5u);
  EXPECT_EQ(tensors.at("num_batches_tracked").item<std::int64_t>(), 0);
  const auto plain = tensors_in(from_python(R"(
torch.serialization.set_crc32_options(False)
torch.save({"w": torch.arange(3)}, sys.argv[1], pickle_protocol=5)
)"));
  EXPECT_TRUE(plain.at("w").equal(at::arange(3)));
}

}  // namespace
}  // namespace lockstep::checkpoint
