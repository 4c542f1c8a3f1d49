// Folders that PyTorch's distributed checkpoint wrote with FSDP2, on 1 to 4 ranks.

#include "checkpoint/distributed_checkpoint.h"
#include "checkpoint/distributed_python.h"
#include "support/messages.h"

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/torch_optimizer.h>
#include <lockstep/comm/local.h>
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

using layout::Box;

// The number of elements in these boxes exceeds an int64.
TEST(ChunkCover, LargeBoxesThatOverlapAreRefused) {
  const std::vector<std::int64_t> sizes{std::int64_t{1} << 61};
  const std::vector<Box> boxes(5, Box{{0}, sizes});
  EXPECT_NE(test::message_of<BadInput>([&] { check_cover("w", sizes, boxes); }).find("overlap"),
            std::string::npos);
}

// A grid of rows x columns boxes of 2 x 3 elements, in random order.
std::vector<Box> grid(std::int64_t rows, std::int64_t columns, std::mt19937& random) {
  std::vector<Box> boxes;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      boxes.push_back({{2 * row, 3 * column}, {2, 3}});
  std::ranges::shuffle(boxes, random);
  return boxes;
}

TEST(ChunkCover, ComparesFewPairs) {
  std::mt19937 random(1);
  const auto compared = [&](std::int64_t rows, std::int64_t columns) {
    return check_cover("w", std::vector<std::int64_t>{2 * rows, 3 * columns},
                       grid(rows, columns, random));
  };
  EXPECT_EQ(compared(4096, 1), 0u);
  EXPECT_EQ(compared(1, 4096), 0u);
  EXPECT_LE(compared(64, 64), 64u * 64 * 64);
  EXPECT_LE(compared(1024, 4), 4u * 4096);
  EXPECT_LE(compared(4, 1024), 4u * 4096);
  EXPECT_EQ(check_cover("scalar", {}, std::vector<Box>{{{}, {}}}), 0u);
}

// The naive rule: counts how often each element is covered.
bool is_whole(std::int64_t rows, std::int64_t columns, const std::vector<Box>& boxes) {
  std::vector<int> counts(static_cast<std::size_t>(rows * columns));
  for (const Box& box : boxes)
    for (std::int64_t row = 0; row < box.sizes[0]; ++row)
      for (std::int64_t column = 0; column < box.sizes[1]; ++column)
        ++counts[static_cast<std::size_t>((box.offsets[0] + row) * columns + box.offsets[1] +
                                          column)];
  return std::ranges::all_of(counts, [](int count) { return count == 1; });
}

TEST(ChunkCover, RefusesWhatIsNotEachElementOnce) {
  std::mt19937 random(2);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto rows = static_cast<std::int64_t>(1 + random() % 4);
    const auto columns = static_cast<std::int64_t>(1 + random() % 4);
    std::vector<Box> boxes = grid(rows, columns, random);
    if (random() % 2 == 0) {  // one box is moved, missing, duplicated, or has another size
      Box& changed = boxes[random() % boxes.size()];
      switch (random() % 4) {
        case 0:
          changed.offsets = {static_cast<std::int64_t>(random() % (2 * rows - 1)), 0};
          break;
        case 1:
          boxes.pop_back();
          break;
        case 2:
          boxes.push_back(changed);
          break;
        default:
          changed.sizes = {1, 3};
      }
    }
    const std::vector<std::int64_t> sizes{2 * rows, 3 * columns};
    bool is_taken = true;
    try {
      check_cover("w", sizes, boxes);
    } catch (const BadInput&) {
      is_taken = false;
      ++refused;
    }
    ASSERT_EQ(is_taken, is_whole(sizes[0], sizes[1], boxes)) << round;
  }
  EXPECT_GT(refused, 500);
  const std::vector<Box> twice{{{}, {}}, {{}, {}}};
  EXPECT_EQ(test::message_of<BadInput>([&] { check_cover("s", {}, twice); }),
            "parts [] + [] and [] + [] of 's' overlap");
}

class WrittenOnRanks : public DistributedCheckpoint, public testing::WithParamInterface<int> {};

TEST_P(WrittenOnRanks, IsReadWhole) {
  const auto folder = write(GetParam());
  const auto whole = tensors_in(read_torch_file(folder / "whole.pt"));
  for (const bool map : {false, true}) {
    const auto saved = read_distributed_checkpoint(folder / "dcp", {.map = map}).toGenericDict();
    EXPECT_EQ(saved.at("step").toInt(), 7);
    EXPECT_EQ(saved.at("note").toStringRef(), "höhe");
    EXPECT_EQ(saved.at("history").toListRef()[1].toGenericDict().at("best").toInt(), 2);
    const auto group = saved.at("optim").toGenericDict().at("param_groups").toListRef()[0];
    EXPECT_EQ(group.toGenericDict().at("lr").toDouble(), 0.125);
    auto tensors = tensors_in(saved);
    expect_equal(tensors, whole);
  }
}

// The optimizer's own numbering, which our optimizer maps by the order of parameters.
TEST_P(WrittenOnRanks, GoesOnWithItsOptimizer) {
  const auto folder = write(GetParam());
  const auto whole = tensors_in(read_torch_file(folder / "whole.pt"));
  for (const char* name : {"plain", "dcp"}) {
    const auto saved = read_distributed_checkpoint(folder / name).toGenericDict();
    std::vector<at::Tensor> parameters;
    const std::vector<std::string> names{"0.weight", "0.bias",   "1.weight",
                                         "1.bias",   "2.weight", "2.bias"};
    for (const std::string& each : names) parameters.push_back(whole.at("model." + each).clone());
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1));
    load_torch_optimizer(optimizer, saved.at("optim"));
    const auto states = torch_optimizer(optimizer).toGenericDict().at("state").toGenericDict();
    for (std::size_t i = 0; i < names.size(); ++i)
      for (const char* field : {"step", "exp_avg", "exp_avg_sq"})
        EXPECT_TRUE(states.at(static_cast<std::int64_t>(i))
                        .toGenericDict()
                        .at(field)
                        .toTensor()
                        .equal(whole.at("optim.state." + names[i] + '.' + field)))
            << names[i] << field;
  }
}

// Loads shards on other numbers of ranks and under other strategies than the writer's.
TEST_P(WrittenOnRanks, IsLoadedIntoHandles) {
  const auto folder = write(GetParam());
  const auto whole = tensors_in(read_torch_file(folder / "whole.pt").toGenericDict().at("model"));
  for (const int ranks : {1, 2, 3, 5})
    for (const bool is_sharded : {false, true})
      run_as_threads(ranks, [&](Group group) {
        torch::nn::Sequential module(torch::nn::Linear(5, 7), torch::nn::BatchNorm1d(7),
                                     torch::nn::Linear(7, 3));
        Handle handle;
        if (is_sharded)
          handle = fully_shard(module, group);
        else
          handle = DistributedDataParallel(module, group);
        load_distributed_model(folder / "dcp", handle);
        expect_equal(handle.state_dict(), whole);
        const std::string refusal = test::message_of<CollectiveFailure>(
            [&] { load_distributed_model(folder / "dcp", handle, "optim"); });
        EXPECT_NE(refusal.find("expected a tensor 'optim.0."), std::string::npos) << refusal;
        module->to(at::kDouble);  // values are not rounded silently
        Handle wide = DistributedDataParallel(module, group);
        const std::string of_dtype = test::message_of<CollectiveFailure>(
            [&] { load_distributed_model(folder / "dcp", wide); });
        EXPECT_NE(of_dtype.find("expected a tensor of Double"), std::string::npos) << of_dtype;
      });
}

// The .metadata of 350 tensors on 1,024 ranks.
TEST_F(DistributedCheckpoint, ManyPartsOfManyTensorsAreRead) {
  expect_python(R"(
import pickle
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import *
metadata = Metadata({}, {}, {})
files = ["__%d_0.distcp" % i for i in range(1024)]
offsets, one = [torch.Size([i]) for i in range(1024)], torch.Size([1])
for tensor in range(350):
    name = "model.t%d" % tensor
    metadata.state_dict_metadata[name] = TensorStorageMetadata(
        TensorProperties(dtype=torch.float32), torch.Size([1024]),
        [ChunkStorageMetadata(offset, one) for offset in offsets])
    for offset, file in zip(offsets, files):
        metadata.storage_data[MetadataIndex(name, offset)] = _StorageInfo(file, 0, 100)
    metadata.planner_data[name] = ("model", name[6:])
pickle.dump(metadata, open(sys.argv[1], "wb"))
)",
                {(folder_ / ".metadata").string()});
  const DistributedFolder folder(folder_.path(), {});
  ASSERT_EQ(folder.in_order().size(), 350u);
  EXPECT_EQ(folder.in_order()[9]->first, "model.t9");
  EXPECT_EQ(folder.entries().at("model.t349").chunks.size(), 1024u);
}

// Values that PyTorch saved as one entry: a dict with the keys 0 and 1, which is not a list, and 40
// dicts, each of which has the previous one twice.
TEST_F(DistributedCheckpoint, SavedValuesStayAsTheyAre) {
  expect_python(R"(
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
shared = {"a": 1}
for _ in range(40):
    shared = {"x": shared, "y": shared}
values = {"counts": {0: 5, 1: 7}, "shared": shared}
class Planner(DefaultSavePlanner):
    def transform_object(self, item, value):
        return super().transform_object(item, values.get(item.index.fqn, value))
dcp.save({"counts": 1, "shared": 1, "w": torch.ones(2)}, checkpoint_id=sys.argv[1],
         planner=Planner(flatten_state_dict=False), no_dist=True)
)",
                {(folder_ / "dcp").string()});
  const auto saved = read_distributed_checkpoint(folder_ / "dcp").toGenericDict();
  const auto counts = saved.at("counts");
  ASSERT_TRUE(counts.isGenericDict()) << counts.tagKind();
  EXPECT_EQ(counts.toGenericDict().at(std::int64_t{1}).toInt(), 7);
  c10::IValue value = saved.at("shared");
  for (int level = 0; level < 40; ++level) value = value.toGenericDict().at("y");
  EXPECT_EQ(value.toGenericDict().at("a").toInt(), 1);
}

INSTANTIATE_TEST_SUITE_P(Ranks, WrittenOnRanks, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace lockstep::checkpoint
