// Counts the bytes that each rank reads from the disk.
#include <lockstep/checkpoint/checkpoint.h>

#include "checkpoint/small_training.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

using test::Level;
using test::TemporaryFolder;

struct Counted {
  std::vector<std::uint64_t> read, verified;
  std::uint64_t total = 0;
};

Counted counted(const Level& level, int ranks) {
  TemporaryFolder out;
  Counted found{.read = std::vector<std::uint64_t>(static_cast<std::size_t>(ranks)),
                .verified = std::vector<std::uint64_t>(static_cast<std::size_t>(ranks))};
  const auto training_of = [&](const Group& group) {
    auto model = std::make_shared<torch::nn::LinearImpl>(256, 256);
    Handle handle = level ? Handle(fully_shard(model, group, {.units = {}, .level = *level}))
                          : Handle(DistributedDataParallel(model, group));
    return std::pair(model, std::move(handle));
  };
  run_as_threads(ranks, [&](Group group) {
    auto [model, handle] = training_of(group);
    torch::optim::SGD sgd(handle.parameters(), 0.1);
    save(out.path(), handle, sgd, {.step = 1}, {.sharding = {.files = 2}});
    LoadCounts counts;
    group.barrier().wait();
    load(out / "step-00000001", handle, sgd, {.counts = &counts});
    found.read[static_cast<std::size_t>(group.rank())] = counts.read;
    found.verified[static_cast<std::size_t>(group.rank())] = counts.verified;
  });
  for (const char* name : {"model.safetensors", "random.safetensors"})
    for (const auto& [tensor_name, tensor] : read_safetensors(out / "step-00000001" / name).tensors)
      found.total += tensor.nbytes();
  return found;
}

// All ranks together read the bytes once to verify them, and each rank reads its own shards.
TEST(BytesRead, ARankReadsTheBytesThatItNeeds) {
  constexpr std::uint64_t model = (256 * 256 + 256) * 4, slack = 64 << 10;
  for (const int ranks : {1, 2, 4, 8}) {
    const Counted full = counted(ShardLevel::full, ranks), ddp = counted(std::nullopt, ranks);
    std::uint64_t verified = 0, read = 0;
    for (const std::uint64_t bytes : full.verified) verified += bytes;
    EXPECT_EQ(verified, full.total);
    for (const std::uint64_t bytes : full.read) {
      EXPECT_LE(bytes, model / static_cast<unsigned>(ranks) + slack);
      read += bytes;
    }
    EXPECT_GE(read, model);
    EXPECT_LE(read, model + slack * 2);
    for (const std::uint64_t bytes : ddp.read) EXPECT_GE(bytes, model);
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
