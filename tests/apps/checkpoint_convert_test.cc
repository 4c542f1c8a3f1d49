// lockstep checkpoint convert between the output of lockstep-train, files of PyTorch and files of
// the model hubs.
#include "apps/shell.h"
#include "base/format.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace lockstep {
namespace {

using test::program;
using test::shell;
using test::ShellResult;

class Converted : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program("lockstep-train")))
      GTEST_SKIP() << "lockstep-train was not built";
    if (!test::python()) GTEST_SKIP() << test::no_python;
  }
  ShellResult run(const std::string& words) const {
    return shell("cd " + folder_.path().string() + " && " + LOCKSTEP_PROGRAM_DIR "/lockstep " +
                 words + " 2>&1");
  }
  void expect(const std::string& words, int code, const std::vector<std::string>& said) const {
    const ShellResult result = run("checkpoint " + words);
    EXPECT_EQ(result.exit_code, code) << words << '\n' << result.output;
    for (const std::string& text : said)
      EXPECT_NE(result.output.find(text), std::string::npos) << text << "\nin\n" << result.output;
  }
  void expect_python(const std::string& script) const {
    const auto result = test::run_python("import os, sys, torch\nos.chdir(sys.argv[1])\n" + script,
                                         {folder_.path().string()});
    EXPECT_EQ(result.exit_code, 0) << result.output << script;
  }
  void train(const std::string& words) const {
    const ShellResult result = run("train " + words + " --threads 1");
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }

  test::TemporaryFolder folder_;
};

// After conversion in both directions, every file has the same tensors.
TEST_F(Converted, RunsBecomeAnyFormAndComeBack) {
  train("mlp --out mine --steps 4 --save-every 4 --layers 2 --width 8");
  expect("convert mine all.pt", 0,
         {"all.pt: ", " of the model in ", "from the checkpoint mine/step-00000004\n"});
  expect("convert mine m.safetensors", 0, {"; the optimizer state was left out"});
  expect("convert mine shards --shard-bytes 300", 0, {"shards: "});
  expect("convert all.pt back.safetensors", 0, {"from a file of torch.save()"});
  expect("convert shards back2.safetensors", 0, {"from a folder of safetensors"});
  expect("convert shards/model.safetensors.index.json back3.safetensors", 0,
         {"from shards of safetensors"});
  expect("diff m.safetensors mine/step-00000004/model.safetensors", 0, {"the same"});
  expect("diff back.safetensors m.safetensors", 0, {"the same"});
  expect("diff back2.safetensors m.safetensors", 0, {"the same"});
  expect("diff back3.safetensors m.safetensors", 0, {"the same"});
  expect("convert all.pt again/step-00000004", 0, {"again/step-00000004: "});
  expect("ls again", 0, {"step-00000004  "});
  expect("verify again", 0, {"whole"});
  expect("diff again/step-00000004/model.safetensors m.safetensors", 0, {"the same"});
  expect("diff again/step-00000004/optimizer.safetensors mine/step-00000004/optimizer.safetensors",
         0, {"the same"});
  expect("show all.pt", 0, {"a file of torch.save(), ", " Float ["});
  expect("show shards", 0, {"a folder of safetensors, "});
}

// The three lines of docs/checkpoints.md with which a Python optimizer loads states by name.
TEST_F(Converted, PythonGoesOnWithARun) {
  train("mlp --out mine --steps 3 --save-every 3 --layers 2 --width 8");
  expect("convert mine all.pt", 0, {});
  expect_python(R"(
saved = torch.load("all.pt", weights_only=True)
assert saved["step"] == 3 and saved["epoch"] == 0
model = torch.nn.Module()
for name, tensor in saved["model"].items():
    at = model
    *modules, last = name.split(".")
    for part in modules:
        if not hasattr(at, part):
            at.add_module(part, torch.nn.Module())
        at = getattr(at, part)
    at.register_parameter(last, torch.nn.Parameter(torch.zeros_like(tensor)))
model.load_state_dict(saved["model"])
optimizer = torch.optim.AdamW(model.parameters())
state = optimizer.state_dict()
by_name = saved["optimizer"]["state"]
state["state"] = {i: by_name[name] for i, (name, _) in enumerate(model.named_parameters())}
optimizer.load_state_dict(state)
for name, parameter in model.named_parameters():
    assert torch.equal(parameter, saved["model"][name])
    assert optimizer.state[parameter]["step"].item() == 3
    parameter.grad = torch.ones_like(parameter)
optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "python.pt")
)");
  expect("convert python.pt next/step-00000004", 0, {"from a file of torch.save()"});
  expect("verify next", 0, {"whole"});
  expect("diff mine next", 1, {"model.safetensors: ", "optimizer.safetensors: optimizer."});
}

TEST_F(Converted, ATrainedGptIsAGpt2OfTheHubs) {
  std::ofstream(folder_ / "book.txt") << std::string(400, 'a') + "bcd efg " + std::string(400, 'b');
  train(
      "gpt --data book.txt --out mine --steps 2 --save-every 2 --layers 1 --heads 2 --width 8 "
      "--block 8");
  expect("convert mine hub", 0, {"hub: "});
  expect("show hub", 0, {"transformer.h.0.attn.c_attn.weight Float [8, 24]"});
  EXPECT_TRUE(std::filesystem::exists(folder_ / "hub/config.json"));
  const ShellResult generated = run("generate --model hub --tokens 1,2 --new-tokens 3 --greedy");
  EXPECT_EQ(generated.exit_code, 0) << generated.output;
  EXPECT_EQ(generated.output.find("1,2,"), 0u) << generated.output;
  expect("convert hub copy --shard-bytes 2000", 0, {"copy: "});
  EXPECT_TRUE(std::filesystem::exists(folder_ / "copy/config.json"));
  expect("convert hub gpt2.pt", 0, {});
  // A folder with pickled weights, as transformers saves with safe_serialization=False.
  std::filesystem::create_directory(folder_ / "bin");
  std::filesystem::copy(folder_ / "hub/config.json", folder_ / "bin/config.json");
  std::filesystem::copy(folder_ / "gpt2.pt", folder_ / "bin/pytorch_model.bin");
  expect("show bin", 0, {"a file of torch.save(), "});
  expect("convert bin hub2", 0, {"hub2: "});
  EXPECT_TRUE(std::filesystem::exists(folder_ / "hub2/config.json"));
  expect("diff hub/model.safetensors hub2/model.safetensors", 0, {"the same"});
  // `lockstep train` cannot resume from it, because it is not a run of that program.
  expect("convert hub run/step-00000000", 1, {"cannot become a checkpoint of a run"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
  expect_python(R"(
state = torch.load("gpt2.pt", weights_only=True)
assert state["transformer.h.0.attn.c_attn.weight"].shape == (8, 24)
)");
}

// `lockstep train` writes a large model in shards, each with the metadata of the model.
TEST_F(Converted, TheIndexOfATrainedGptIsAGptToo) {
  std::ofstream(folder_ / "book.txt") << std::string(400, 'a') + "bcd efg " + std::string(400, 'b');
  train(
      "gpt --data book.txt --out mine --steps 2 --save-every 2 --layers 1 --heads 2 --width 8 "
      "--block 8");
  expect_python(R"(
import json, struct
whole = open("mine/model.safetensors", "rb").read()
begin = 8 + struct.unpack("<Q", whole[:8])[0]
header = json.loads(whole[8:begin])
metadata = {key: text for key, text in header.pop("__metadata__").items() if key[:6] != "crc32."}
os.mkdir("shards")
weight_map = {}
for part in range(2):
    name = f"model-0000{part + 1}-of-00002.safetensors"
    entries, body = {"__metadata__": metadata}, b""
    for tensor in sorted(header)[part::2]:
        first, last = header[tensor]["data_offsets"]
        entries[tensor] = dict(header[tensor], data_offsets=[len(body), len(body) + last - first])
        body += whole[begin + first:begin + last]
        weight_map[tensor] = name
    text = json.dumps(entries).encode()
    with open("shards/" + name, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)
with open("shards/model.safetensors.index.json", "w") as file:
    json.dump({"weight_map": weight_map}, file)
)");
  expect("convert mine hub", 0, {"hub: "});
  expect("convert shards/model.safetensors.index.json hub2", 0, {"from shards of safetensors"});
  EXPECT_TRUE(std::filesystem::exists(folder_ / "hub2/config.json"));
  expect("diff hub/model.safetensors hub2/model.safetensors", 0, {"the same"});
  const ShellResult generated =
      run("generate shards/model.safetensors.index.json --prompt a --tokens 3 --greedy");
  EXPECT_EQ(generated.exit_code, 0) << generated.output;
}

TEST_F(Converted, ATrainedLlamaIsALlamaOfTheHubs) {
  std::ofstream(folder_ / "book.txt") << std::string(400, 'a') + "bcd efg " + std::string(400, 'b');
  train(
      "llama --data book.txt --out mine --steps 2 --save-every 2 --layers 1 --heads 2 "
      "--key-value-heads 1 --width 8 --block 8");
  expect("convert mine hub", 0, {"hub: "});
  expect("show hub", 0, {"model.layers.0.self_attn.k_proj.weight Float [4, 8]"});
  expect_python(R"(
import json
config = json.load(open("hub/config.json"))
assert config["model_type"] == "llama" and config["hidden_size"] == 8, config
assert config["num_key_value_heads"] == 1 and config["num_attention_heads"] == 2, config
)");
  expect("diff mine/step-00000002/model.safetensors hub/model.safetensors", 0, {"the same"});
  const ShellResult generated = run("generate --model hub --tokens 1,2 --new-tokens 3 --greedy");
  EXPECT_EQ(generated.exit_code, 0) << generated.output;
  EXPECT_EQ(generated.output.find("1,2,"), 0u) << generated.output;
  expect("convert hub copy", 0, {"copy: "});
  EXPECT_TRUE(std::filesystem::exists(folder_ / "copy/config.json"));
}

// get_extra_state() of a module may return any value.
TEST_F(Converted, ExtraStateOfModulesIsLeftOut) {
  expect_python(R"(
class Extra(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(2, 2)
    def get_extra_state(self):
        return {"amax": torch.ones(2), "steps": 3}
model = torch.nn.Sequential(Extra(), torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=.1, momentum=.9)
model[1](model[0].l(torch.ones(2))).sum().backward()
optimizer.step()
torch.save(model.state_dict(), "bare.pt")
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "both.pt")
)");
  expect("convert bare.pt a.safetensors", 0,
         {"in 4 tensors, from a file of torch.save(); everything except the model was left out"});
  expect("convert both.pt b.safetensors", 0, {"in 4 tensors"});
  expect("diff a.safetensors b.safetensors", 0, {"the same 4 tensors"});
  expect("convert both.pt run/step-00000001", 0, {"in 4 tensors"});
}

TEST_F(Converted, MistakesAreOneLine) {
  expect_python(R"(
torch.save({"net": {"w": torch.ones(2)}, "ema": {"w": torch.zeros(2)}}, "two.pt")
torch.save({"model": {"w": torch.ones(2), "v": torch.ones(2)},
            "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}},
                          "param_groups": [{"params": [0]}]}}, "few.pt")
torch.save({"epoch": 3}, "none.pt")
torch.save(torch.ones(2), "bare.pt")
torch.save({"w": torch.ones(2, dtype=torch.complex128)}, "wide.pt")
layer = torch.nn.Linear(2, 1)
adamax = torch.optim.Adamax(layer.parameters())
layer(torch.ones(2)).sum().backward()
adamax.step()
torch.save({"model": layer.state_dict(), "optimizer": adamax.state_dict()}, "adamax.pt")
)");
  expect("convert none.pt a.safetensors", 1, {"none.pt: expected tensors, found none"});
  expect("convert bare.pt a.safetensors", 1,
         {"bare.pt: expected a state_dict, found a tensor without a name"});
  expect("convert wide.pt a.safetensors", 1,
         {"tensor 'w': safetensors has no name for dtype ComplexDouble"});
  expect("convert adamax.pt run/step-00000001", 1,
         {"expected the optimizer state of Adam, AdamW, SGD, RMSprop or Adagrad, found another"});
  expect("convert two.pt a.safetensors", 1, {"name it with --model-key KEY: ema net"});
  expect("convert two.pt a.safetensors --model-key nett", 1,
         {"expected the model at 'nett', found only ema net"});
  expect("convert two.pt a.safetensors --model-key ema", 0, {"in 1 tensor, "});
  expect("convert few.pt run/step-00000001", 1,
         {"and of the model's tensors differ, 1 and 2: give their names with --parameters FILE"});
  expect("convert two.pt two.pt", 1, {"FROM and TO must differ"});
  expect("convert nowhere a.pt", 1, {"nowhere: "});
  expect("convert two.pt", 2, {"convert: expected two paths, found 1"});
  expect("convert two.pt a.pt --shard-bytes 0", 2, {"shard-bytes"});
  std::filesystem::create_directory(folder_ / "b.pt");
  expect("convert two.pt b.pt --model-key net", 1, {"expected a file or nothing, found a folder"});
}

// The names of LlamaForCausalLM begin with "model.", apart from that of its head.
TEST_F(Converted, ABareStateDictKeepsItsNames) {
  expect_python(R"(
torch.save({"model.norm.weight": torch.ones(2), "lm_head.weight": torch.zeros(3)}, "llama.pt")
torch.save({"model.norm.weight": torch.ones(2), "model.fc.weight": torch.zeros(3)}, "all.pt")
torch.save({"module.fc.weight": torch.ones(2), "module.fc.bias": torch.zeros(3)}, "ddp.pt")
torch.save({"model.fc.weight": torch.ones(2), "epoch": 3}, "flat.pt")
import torch.distributed.checkpoint as dcp
dcp.save({"model.norm.weight": torch.ones(2), "lm_head.weight": torch.zeros(3)},
         checkpoint_id="dcp")
)");
  for (const char* from : {"llama.pt", "dcp"}) {
    expect(std::string("convert ") + from + " o.safetensors", 0,
           {" of the model in 2 tensors, from "});
    expect("show o.safetensors", 0, {"model.norm.weight F32 [2]", "lm_head.weight F32 [3]"});
  }
  expect("convert all.pt o.safetensors", 0, {" of the model in 2 tensors, from "});
  expect("show o.safetensors", 0, {"model.norm.weight F32 [2]", "model.fc.weight F32 [3]"});
  expect("convert flat.pt o.safetensors", 0, {"; everything except the model was left out"});
  expect("show o.safetensors", 0, {"\n  fc.weight F32 [2]"});
  expect("convert ddp.pt o.safetensors", 0,
         {" of the model in 2 tensors, from a file of torch.save()\n"});
  expect("show o.safetensors", 0, {"\n  fc.weight F32 [2]", "fc.bias F32 [3]"});
}

// The low bytes of a header's length may be those of a pickle (0x0280) or a zip archive (0x4b50).
TEST_F(Converted, AHeaderOfAnyLengthIsOfSafetensors) {
  expect_python(R"(
import json, struct
for length in (640, 19280, 65536 + 640):
    header = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    text = json.dumps(header).encode().ljust(length)
    with open(f"h{length}.safetensors", "wb") as file:
        file.write(struct.pack("<Q", length) + text + struct.pack("<2f", 1, 2))
)");
  for (const char* length : {"640", "19280", "66176"}) {
    expect(formatted("show h{}.safetensors", length), 0, {"w F32 [2]"});
    expect(formatted("convert h{}.safetensors o.pt", length), 0,
           {" of the model in 1 tensor, from "});
  }
}

TEST_F(Converted, AnAdagradMayLackStatisticsAndFrozenParameters) {
  expect_python(R"(
from torch import nn
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
model[0].requires_grad_(False)
optimizer = torch.optim.Adagrad([p for p in model.parameters() if p.requires_grad], lr=.1)
model(torch.randn(5, 3)).sum().backward()
optimizer.step()
with open("names", "w") as file:
    file.write("\n".join(n for n, p in model.named_parameters() if p.requires_grad))
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "all.pt")
optimizer.state_dict()["state"][0]["step"].fill_(float("nan"))
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "nan.pt")
)");
  expect("convert all.pt run/step-00000001 --parameters names", 0, {"run/step-00000001: "});
  expect("verify run", 0, {"whole"});
  expect("show run/step-00000001", 0, {"optimizer.2.weight.sum F32 [2, 4]"});
  expect("convert nan.pt other/step-00000001 --parameters names", 1,
         {"expected a number of steps from 0 to", "found nan"});
}

// Each level is there twice, so that 60 levels are 2^60 values.
TEST_F(Converted, DictsThatAreSharedManyTimesAreRefused) {
  expect_python(R"(
x = {}
for _ in range(60):
    x = {"a": x, "b": x}
torch.save({"model": {"w": torch.ones(1)}, "z": x}, "many.pt")
)");
  expect("show many.pt", 1, {"many.pt: expected at most 4194304 values"});
}

TEST_F(Converted, AnotherCheckpointSaysWhatItLacks) {
  train("mlp --out mine --steps 2 --save-every 2 --layers 2 --width 8");
  expect("convert mine other/step-00000007", 0, {"; with new random states: `reshard` copies"});
}

}  // namespace
}  // namespace lockstep
