// The optimizer's state is verified while it is read, whichever ranks own it, and no byte of a
// damaged state reaches the optimizer.
#include <lockstep/checkpoint/checkpoint.h>

#include "checkpoint/small_training.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::Level;
using test::TemporaryFolder;
using test::Training;

// Returns the bytes of the tensors whose names end with `end`.
std::uint64_t bytes_of(const fs::path& file, const std::string& end = "") {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : read_safetensors(file).tensors)
    if (name.ends_with(end)) bytes += tensor.nbytes();
  return bytes;
}

// Returns the totals over all ranks.
LoadCounts counts_of_loading(const fs::path& folder, const Level& level, int ranks,
                             bool has_state) {
  std::vector<LoadCounts> counts(static_cast<std::size_t>(ranks));
  run_as_threads(ranks, [&](Group group) {
    Training training(level, "our_adamw", group);
    if (has_state) training.step();
    load(folder, training.handle, *training.optimizer,
         {.counts = &counts[static_cast<std::size_t>(group.rank())]});
  });
  LoadCounts all;
  for (const LoadCounts& of_rank : counts) {
    all.read += of_rank.read;
    all.verified += of_rank.verified;
  }
  return all;
}

TEST(ReadOnce, OnlyTheModelIsReadToCompareItAlone) {
  TemporaryFolder out;
  const fs::path folder = test::save_in_files(out.path(), std::nullopt, 2, 2);
  std::uint64_t others = bytes_of(folder / "random.safetensors");
  for (const char* shard : {"-00001-of-00002", "-00002-of-00002"})
    others += bytes_of(folder / ("model" + std::string(shard) + ".safetensors")) +
              bytes_of(folder / ("optimizer" + std::string(shard) + ".safetensors"), ".step");
  for (const Level& level : test::all_strategies)
    for (int ranks : {1, 2, 3, 5})
      for (bool has_state : {false, true})
        EXPECT_EQ(counts_of_loading(folder, level, ranks, has_state).verified, others)
            << test::name_of(level) << " on " << ranks;
}

void flip(const fs::path& file, std::int64_t place) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  const int before = bytes.seekg(place).get();
  bytes.seekp(place).put(static_cast<char>(before ^ 1));
}

TEST(ReadOnce, ADamagedStateLeavesAllAsItWas) {
  TemporaryFolder out;
  const fs::path folder = test::save_in_files(out.path(), ShardLevel::full, 3, 1);
  const fs::path file = folder / "optimizer.safetensors";
  const auto size = static_cast<std::int64_t>(fs::file_size(file));
  const auto data = static_cast<std::int64_t>(bytes_of(file));
  for (const Level& level : test::all_strategies)
    for (int ranks : {1, 2, 5}) {
      TemporaryFolder before, after;
      run_as_threads(ranks, [&](Group group) {
        Training training(level, "our_adamw", group);
        training.step();
        training.save(before.path());
        for (std::int64_t place = size - 1; place > size - data; place -= data / 5) {
          group.barrier().wait();
          if (group.is_root()) flip(file, place);
          group.barrier().wait();
          test::expect_words(test::message_of<CollectiveFailure>(
                                 [&] { load(folder, training.handle, *training.optimizer); }),
                             {file.string(), "is damaged: expected"});
          group.barrier().wait();
          if (group.is_root()) flip(file, place);
        }
        training.save(after.path());
        group.barrier().wait();
        load(folder, training.handle, *training.optimizer);
      });
      test::expect_same_checkpoint(after / "step-00000001", before / "step-00000001");
    }
}

}  // namespace
}  // namespace lockstep::checkpoint
