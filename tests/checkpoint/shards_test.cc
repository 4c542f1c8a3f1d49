// Checkpoints of several files: other programs can read them, and each error is one line.
#include <lockstep/checkpoint/checkpoint.h>

#include "base/format.h"
#include "checkpoint/content.h"
#include "checkpoint/shards.h"
#include "checkpoint/small_training.h"
#include "support/flush_hook.h"
#include "support/messages.h"
#include "support/python.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::go_on;
using test::Level;
using test::names_in;
using test::save_in_files;
using test::TemporaryFolder;
using test::text_of;
using test::Training;

// Returns the error, which must be one line.
std::string damage_in(const fs::path& folder) {
  const std::string line = test::message_of<BadInput>([&] { verify(folder); });
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  return line;
}

TEST(Shards, AreWrittenByAllRanksAndReadByAnyNumber) {
  TemporaryFolder one;
  const fs::path expected = save_in_files(one.path(), std::nullopt, 1, 1);
  EXPECT_EQ(names_in(expected),
            (std::vector<std::string>{"layout.json", "model.safetensors", "optimizer.safetensors",
                                      "random.safetensors"}));
  for (const Level& level : test::all_strategies)
    for (const int ranks : {1, 2, 5}) {
      SCOPED_TRACE(test::name_of(level) + " on " + std::to_string(ranks));
      TemporaryFolder out;
      const fs::path folder = save_in_files(out.path(), level, ranks, 3);
      EXPECT_EQ(names_in(folder),
                (std::vector<std::string>{
                    "layout.json", "model-00001-of-00003.safetensors",
                    "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                    "model.safetensors.index.json", "optimizer-00001-of-00003.safetensors",
                    "optimizer-00002-of-00003.safetensors", "optimizer-00003-of-00003.safetensors",
                    "optimizer.safetensors.index.json", "random.safetensors"}));
      test::expect_same_checkpoint(folder, expected);
      verify(folder);
      for (const Level& other : test::all_strategies) {
        TemporaryFolder copy;
        fs::copy(out.path(), copy.path(), fs::copy_options::recursive);
        go_on(copy.path(), other, "our_adamw", 3, 1);
        TemporaryFolder straight;
        go_on(straight.path(), std::nullopt, "our_adamw", 1, 3);
        test::expect_same_checkpoint(copy / "step-00000003", straight / "step-00000003");
      }
    }
}

TEST(Shards, LoadModelTakesTheIndexToo) {
  TemporaryFolder out;
  const fs::path folder = save_in_files(out.path(), std::nullopt, 2, 4);
  run_as_threads(3, [&](Group group) {
    Training training(ShardLevel::full, "sgd", group);
    load_model(folder / "model.safetensors", training.handle);
    const auto expected = read_safetensors(folder / "model.safetensors").tensors;
    const auto found = training.handle.state_dict();
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(found.at(name).equal(tensor)) << name;
  });
}

// Reads shards as programs of a model hub do: the index, and then each file that it names.
constexpr const char* python_shards = R"(
import json, os, sys, torch
def by_hand(path):
    raw = bytearray(open(path, "rb").read())
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    header.pop("__metadata__", None)
    dtypes = {"F32": torch.float32, "I64": torch.int64}
    def read(t):
        return torch.frombuffer(raw, dtype=dtypes[t["dtype"]], offset=begin + t["data_offsets"][0],
                                count=torch.Size(t["shape"]).numel()).view(t["shape"])
    return {name: read(t) for name, t in header.items()}
try:
    from safetensors.torch import load_file
except ImportError:
    load_file = by_hand
index = json.load(open(sys.argv[1]))
tensors = {}
for name in sorted(set(index["weight_map"].values())):
    for key, tensor in load_file(os.path.join(os.path.dirname(sys.argv[1]), name)).items():
        assert index["weight_map"][key] == name
        tensors[key] = tensor
assert set(tensors) == set(index["weight_map"])
size = sum(t.numel() * t.element_size() for t in tensors.values())
assert index["metadata"]["total_size"] == size
for name in sorted(tensors):
    print(name, list(tensors[name].shape), "%.17g" % tensors[name].double().sum().item())
)";

TEST(Shards, PythonReadsThemByTheIndex) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  TemporaryFolder out;
  const fs::path folder = save_in_files(out.path(), ShardLevel::full, 3, 3);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    std::string expected;
    for (const auto& [tensor_name, tensor] : read_safetensors(folder / name).tensors) {
      char sum[40];
      std::snprintf(sum, sizeof(sum), "%.17g", tensor.to(at::kDouble).sum().item<double>());
      expected += formatted("{} [{}] {}\n", tensor_name, listed(tensor.sizes(), ", "), sum);
    }
    const auto result = test::run_python(python_shards, {index_path(folder / name).string()});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.output, expected);
  }
}

TEST(Shards, WhatIsWrongWithThemIsOneLine) {
  struct Case {
    std::function<void(const fs::path&)> how;
    std::vector<std::string> words;
  };
  const std::string index = "model.safetensors.index.json";
  const std::string second = "model-00002-of-00003.safetensors";
  const auto replace_in_index = [=](const std::string& from, const std::string& to) {
    return [=](const fs::path& folder) {
      std::string text = text_of(folder / index);
      const std::size_t place = text.find(from);
      ASSERT_NE(place, std::string::npos) << from << " in " << text;
      std::ofstream(folder / index) << text.replace(place, from.size(), to);
      test::reseal(folder);
    };
  };
  TemporaryFolder other;
  const fs::path another = save_in_files(other.path(), std::nullopt, 1, 2);
  const std::vector<Case> cases = {
      {[=](const fs::path& folder) { fs::remove(folder / second); },
       {"opening ", "/" + second, "No such file or directory"}},
      {[=](const fs::path& folder) { fs::remove(folder / index); }, {"/" + index, "No such file"}},
      {[=](const fs::path& folder) {
         fs::copy(another / "model-00002-of-00002.safetensors", folder / second,
                  fs::copy_options::overwrite_existing);
       },
       {"/" + second + ": is not the file that layout.json was saved with"}},
      {[=](const fs::path& folder) {
         fs::copy(another / "model-00001-of-00002.safetensors", folder / "model.safetensors");
       },
       {"/model.safetensors: is not one of the files that layout.json was saved with"}},
      {replace_in_index("\"weight_map\": {", R"("weight_map": {"conv.bias": "a",)"),
       {"/" + index + ": has 'conv.bias' twice"}},
      {replace_in_index("\"" + second, "\"../" + second),
       {"/" + index + ": weight_map.",
        "expected a file in this folder, found '../" + second + "'"}},
      {replace_in_index("\"" + second, "\"/etc/passwd"),
       {"expected a file in this folder, found '/etc/passwd"}},
      {replace_in_index("\"conv.bias\"", "\"conv.other\""),
       {"/" + index + ": ", "has the tensor 'conv.bias', which the index does not name"}},
      {replace_in_index("\"weight_map\": {",
                        R"("weight_map": {"nothing": "model-00001-of-00003.safetensors",)"),
       {"/" + index + ": tensor 'nothing' is not in model-00001-of-00003.safetensors"}},
      {replace_in_index("weight_map", "weights"),
       {"/" + index + ": expected an object with a weight_map"}},
      {[=](const fs::path& folder) { std::ofstream(folder / index) << "{"; },
       {"/" + index + ": is not the file that layout.json was saved with"}},
      {[=](const fs::path& folder) {
         std::fstream(folder / second, std::ios::binary | std::ios::in | std::ios::out)
             .seekp(-1, std::ios::end)
             .put('\x77');
       },
       {"/" + second + ": tensor '", "is damaged: expected"}},
      {[=](const fs::path& folder) { fs::resize_file(folder / second, 100); },
       {"/" + second + ": expected a header of "}}};
  for (const Case& one : cases) {
    TemporaryFolder out;
    const fs::path folder = save_in_files(out.path(), std::nullopt, 1, 3);
    verify(folder);
    one.how(folder);
    test::expect_words(damage_in(folder), one.words);
    test::expect_words(test::refusal(3,
                                     [&](Group group) {
                                       Training training(ShardLevel::full, "our_adamw", group);
                                       training.load(out.path());
                                     }),
                       one.words);
  }
}

TEST(Shards, ATensorInTwoFilesIsRefused) {
  TemporaryFolder folder;
  for (const char* name : {"a.safetensors", "b.safetensors"})
    write_safetensors(folder / name, {{"twice", at::ones({2})}, {name, at::ones({1})}});
  std::ofstream(folder / "model.safetensors.index.json")
      << R"({"weight_map": {"a.safetensors": "a.safetensors", "b.safetensors": "b.safetensors",
                            "twice": "a.safetensors"}})";
  test::expect_words(
      test::message_of<BadInput>([&] { (void)read_safetensors(folder / "model.safetensors"); }),
      {"/b.safetensors: tensor 'twice' is also in a.safetensors"});
  test::expect_words(test::refusal(2,
                                   [&](Group group) {
                                     Training training(std::nullopt, "sgd", group);
                                     load_model(folder / "model.safetensors", training.handle);
                                   }),
                     {"b.safetensors: tensor 'twice' is also in a.safetensors"});
}

TEST(Shards, AreWrittenOnceMoreInAnyNumber) {
  TemporaryFolder out;
  const fs::path first = save_in_files(out.path(), ShardLevel::full, 3, 3);
  fs::path from = first;
  for (const int files : {1, 5, 2, 0}) {
    const fs::path to = out / formatted("with-{}", files);
    reshard(from, to, {.files = files});
    verify(to);
    test::expect_same_checkpoint(to, first);
    EXPECT_EQ(text_of(to / "random.safetensors"), text_of(first / "random.safetensors"));
    const TrainingState state = read_training_state(to);
    EXPECT_EQ(state.ranks, 3);
    EXPECT_EQ(state.step, 2);
    if (files > 1)
      EXPECT_EQ(files_of(read_weight_map(to / "model.safetensors.index.json"),
                         to / "model.safetensors.index.json")
                    .size(),
                static_cast<std::size_t>(files));
    EXPECT_EQ(fs::exists(to / "model.safetensors"), files < 2);
    from = to;
  }
  // In another folder, the result is a checkpoint of that run, which continues from it.
  reshard(first, out / "run" / "step-00000002", {.files = 2});
  EXPECT_EQ(text_of(out / "run/LATEST"), "step-00000002\n");
  go_on(out / "run", std::nullopt, "our_adamw", 2, 1);
  EXPECT_EQ(names_in(out / "run"), (std::vector<std::string>{"step-00000002", "step-00000003"}));
  test::expect_words(test::message_of<Error>([&] { reshard(first, out / "with-5", {.files = 2}); }),
                     {"with-5: exists already, and a checkpoint is never overwritten: remove it, "
                      "or save under another name"});
  test::expect_words(
      test::message_of<BadInput>([&] { reshard(first, out / "step-00000003", {.files = 2}); }),
      {"step-00000003: expected the name step-00000002"});
  std::fstream(first / "random.safetensors", std::ios::binary | std::ios::in | std::ios::out)
      .seekp(-1, std::ios::end)
      .put('\x77');
  test::expect_words(
      test::message_of<BadInput>([&] { reshard(first, out / "damaged", {.files = 2}); }),
      {"random.safetensors: ", "rank2"});
  EXPECT_FALSE(fs::exists(out / "damaged"));
}

TEST(Latest, NamesTheNewestCheckpoint) {
  TemporaryFolder out;
  for (int step = 1; step <= 3; ++step) {
    go_on(out.path(), std::nullopt, "sgd", 2, 1);
    EXPECT_EQ(text_of(out / "LATEST"), checkpoint_name(step) + "\n");
  }
  // If the parent folder cannot be flushed, the checkpoint is removed.
  const fs::path folder = fs::canonical(out.path());
  std::atomic<int> flushed{0};
  test::FlushHook hook(
      [&](const std::string& path) { return path == folder && ++flushed == 2 ? EIO : 0; });
  const std::string line = test::refusal(2, [&](Group group) {
    Training training(std::nullopt, "sgd", group);
    training.steps = 4;
    training.save(folder, {.keep = 1});
  });
  test::expect_words(line, {"flushing " + folder.string(), "Input/output error"});
  EXPECT_EQ(names_in(folder).size(), 3u);
  EXPECT_EQ(text_of(out / "LATEST"), "step-00000003\n");
}

TEST(Shards, AStepHasOneName) {
  TemporaryFolder out;
  go_on(out.path(), std::nullopt, "sgd", 1, 1);
  fs::copy(out / "step-00000001", out / "step-000000001");
  EXPECT_EQ(list_checkpoints(out.path()), std::vector<fs::path>{out / "step-00000001"});
}

// A truncated header, or a file that cannot be opened, differs from a missing file.
TEST(Shards, ADamagedHeaderOfACopyIsFound) {
  for (const bool is_short : {false, true}) {
    TemporaryFolder out;
    save_in_files(out / "0", std::nullopt, 1, 2);
    fs::copy(out / "0", out / "1", fs::copy_options::recursive);
    const fs::path file = out / "1/step-00000002/model-00001-of-00002.safetensors";
    if (is_short)
      fs::resize_file(file, fs::file_size(file) - 4);
    else
      std::fstream(file, std::ios::binary | std::ios::in | std::ios::out).seekp(12).put('x');
    run_as_threads(2, [&](Group group) {
      Training training(ShardLevel::full, "our_adamw", group);
      test::expect_words(test::message_of<CollectiveFailure>(
                             [&] { training.load(out / std::to_string(group.rank())); }),
                         {"rank 1 on host ", file.string() + ": is damaged: expected "});
    });
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
