// Several threads process a checkpoint: each byte once, with the same result as one thread. Each
// test runs in its own process, because LibTorch's threads do not survive a fork.
#include "checkpoint/pieces.h"

#include "checkpoint/small_training.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <lockstep/checkpoint/async_saver.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

using test::TemporaryFolder;

void with_threads(int threads, const std::function<void()>& action) {
  test::expect_ranks(1, [&](int) {
    at::set_num_threads(threads);
    action();
  });
}

TEST(Pieces, CoverEachByteOnceAndNoWorkerHasTwo) {
  for (int threads : {1, 2, 5})
    with_threads(threads, [&] {
      EXPECT_EQ(piece_workers(), static_cast<std::size_t>(threads));
      for (const std::uint64_t bytes : {0, 1, 7, 8, 9, 1000}) {
        std::vector<std::atomic<int>> visits(bytes), busy(piece_workers());
        for_each_piece(std::span(&bytes, 1), 8, [&](std::size_t worker, const Piece& piece) {
          const auto [stretch, begin, end] = piece;
          EXPECT_EQ(stretch, 0u);
          EXPECT_EQ(busy[worker]++, 0);
          EXPECT_TRUE(end - begin == 8 || end == bytes) << begin << " " << end;
          for (std::uint64_t i = begin; i < end; ++i) ++visits[i];
          --busy[worker];
        });
        for (const auto& count : visits) EXPECT_EQ(count, 1);
      }
    });
}

// Byte ranges of any length, some of them empty: each byte is covered once, and no piece crosses
// the end of a range.
TEST(Pieces, OfSeveralStretchesCoverEachByteOnce) {
  for (int threads : {1, 2, 5})
    with_threads(threads, [&] {
      for (const std::vector<std::uint64_t>& stretches : std::vector<std::vector<std::uint64_t>>{
               {}, {0}, {0, 0, 5}, {8, 0, 16, 7}, {1, 1, 1, 0}, {0, 1000, 3, 0, 24, 1}}) {
        std::vector<std::vector<std::atomic<int>>> visits;
        for (const std::uint64_t bytes : stretches) visits.emplace_back(bytes);
        for_each_piece(stretches, 8, [&](std::size_t worker, const Piece& piece) {
          EXPECT_LT(worker, piece_workers());
          EXPECT_EQ(piece.begin % 8, 0u);
          EXPECT_TRUE(piece.end - piece.begin == 8 || piece.end == stretches[piece.stretch]);
          for (std::uint64_t i = piece.begin; i < piece.end; ++i) ++visits.at(piece.stretch).at(i);
        });
        for (const auto& stretch : visits)
          for (const auto& count : stretch) EXPECT_EQ(count, 1);
      }
    });
}

TEST(Pieces, BringBackWhatIsThrown) {
  for (int threads : {1, 3})
    with_threads(threads, [] {
      const std::uint64_t bytes = 1000;
      const auto work = [](std::size_t, const Piece& piece) {
        if (piece.begin == 40) throw std::runtime_error("byte 40");
      };
      EXPECT_THROW(for_each_piece(std::span(&bytes, 1), 8, work), std::runtime_error);
    });
}

struct LargeTraining {
  LargeTraining() : handle(DistributedDataParallel(model, Group())) {}

  void step() {
    torch::manual_seed(9);
    handle.zero_grad();
    model->forward(at::ones({2, 700})).square().sum().backward();
    sgd.step();
  }

  torch::nn::Linear model{700, 900};
  Handle handle;
  torch::optim::SGD sgd{handle.parameters(), torch::optim::SGDOptions(1e-6).momentum(0.9)};
};

void damage(const std::filesystem::path& file, std::int64_t from_end) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(-from_end, std::ios::end);
  bytes.put('~');
}

// Files that several threads save or load equal those of one thread, and a wrong byte is detected
// at any position.
TEST(Pieces, OfACheckpointAreTheSameBytes) {
  TemporaryFolder alone, out;
  const auto save_into = [](const std::filesystem::path& folder) {
    torch::manual_seed(3);
    LargeTraining training;
    training.step();
    AsyncSaver saver{Group()};
    saver.save(folder, training.handle, training.sgd, {.step = 1});
  };
  with_threads(1, [&] { save_into(alone.path()); });
  with_threads(3, [&] {
    save_into(out.path());
    test::expect_same_checkpoint(out / "step-00000001", alone / "step-00000001");
    LargeTraining loaded;
    load(out / "step-00000001", loaded.handle, loaded.sgd);
    save(out.path(), loaded.handle, loaded.sgd, {.step = 2});
    for (const char* name : {model_file, optimizer_file}) {
      EXPECT_EQ(test::text_of(out / "step-00000001" / name),
                test::text_of(out / "step-00000002" / name));
      for (std::int64_t from_end : {1, 1'000'000, 2'000'000}) {
        std::filesystem::copy(out / "step-00000001", out / "damaged");
        damage(out / "damaged" / name, from_end);
        test::expect_words(test::message_of<CollectiveFailure>(
                               [&] { load(out / "damaged", loaded.handle, loaded.sgd); }),
                           {name, "is damaged"});
        std::filesystem::remove_all(out / "damaged");
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::checkpoint
