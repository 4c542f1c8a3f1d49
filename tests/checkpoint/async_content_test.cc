// AsyncSaver with tensors of every kind, with several handles, and during concurrent activity: the
// files equal those of save() at the time of the call.
#include <lockstep/checkpoint/async_saver.h>

#include "checkpoint/small_disk.h"
#include "checkpoint/small_training.h"
#include "support/flush_hook.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_same_files;
using test::names_in;
using test::TemporaryFolder;
using test::Training;

// Parameters and buffers of many dtypes and memory layouts.
struct Collection : torch::nn::Module {
  explicit Collection(double scale, bool has_expanded = true) {
    const at::Tensor numbers = at::arange(24, at::kFloat).mul(scale).view({4, 6});
    register_parameter("plain", numbers.clone());
    register_parameter("turned", numbers.clone().t());
    register_parameter("one", at::full({}, scale));
    register_parameter("none", at::empty({0, 3}));
    register_buffer("half", numbers.to(at::kBFloat16));
    register_buffer("flags", numbers.gt(5 * scale));
    register_buffer("small", numbers.to(at::kFloat8_e4m3fn));
    register_buffer("count", at::full({}, static_cast<std::int64_t>(scale), at::kLong));
    register_buffer("nothing", at::empty({2, 0}, at::kByte));
    register_buffer("some", numbers.mul(2).slice(1, 1, 5).slice(0, 1, 4));
    register_buffer("every_second", numbers.mul(3).view({24}).slice(0, 0, 24, 2));
    if (has_expanded) register_buffer("repeated", at::full({1, 3}, scale).expand({4, 3}));
    register_buffer("complex", at::complex(numbers, numbers.add(1)).conj());
    register_buffer("negative", at::imag(at::complex(numbers, numbers).conj()));
  }
};

struct CollectionTraining {
  CollectionTraining(double scale, const Group& group, bool has_expanded = true)
      : model(scale, has_expanded), handle(DistributedDataParallel(model, group)) {
    for (at::Tensor& parameter : model.parameters())
      parameter.mutable_grad() = at::ones_like(parameter);
    sgd.step();
  }
  Collection model;
  Handle handle;
  torch::optim::SGD sgd{handle.parameters(), torch::optim::SGDOptions(0.125).momentum(0.5)};
};

TEST(AsyncContent, IsOfTensorsOfEveryKind) {
  for (int ranks : {1, 2, 3}) {
    TemporaryFolder later, at_once;
    run_as_threads(ranks, [&](Group group) {
      torch::manual_seed(4);
      CollectionTraining training(2, group);
      AsyncSaver saver(group);
      saver.save(later.path(), training.handle, training.sgd, {.step = 1});
      save(at_once.path(), training.handle, training.sgd, {.step = 1});
      at::NoGradGuard no_grad;
      for (at::Tensor& parameter : training.model.parameters()) parameter.fill_(-1);
      saver.wait();
    });
    expect_same_files(later / "step-00000001", at_once / "step-00000001");
    const NamedTensors found = read_safetensors(later / "step-00000001" / model_file).tensors;
    Collection expected(2);
    for (const auto& item : expected.named_buffers())
      EXPECT_TRUE(found.at(item.key()).equal(item.value().resolve_conj().resolve_neg()))
          << item.key();
    EXPECT_TRUE(found.at("turned").equal(expected.named_parameters()["turned"] - 0.125));
  }
}

TEST(AsyncContent, ComesBackIntoTensorsOfEveryKind) {
  for (int ranks : {1, 3}) {
    TemporaryFolder out, again;
    run_as_threads(ranks, [&](Group group) {
      CollectionTraining training(2, group, false), other(7, group, false);
      save(out.path(), training.handle, training.sgd, {.step = 1});
      load(out / "step-00000001", other.handle, other.sgd);
      save(again.path(), other.handle, other.sgd, {.step = 1});
    });
    test::expect_same_checkpoint(again / "step-00000001", out / "step-00000001");
  }
}

// A tensor with several indices per memory location cannot be loaded; load() must detect this
// before it changes anything.
TEST(AsyncContent, OfAnExpandedTensorIsNotLoaded) {
  TemporaryFolder out;
  run_as_threads(2, [&](Group group) {
    CollectionTraining training(2, group), other(7, group);
    save(out.path(), training.handle, training.sgd, {.step = 1});
    const at::Tensor before = other.model.named_parameters()["plain"].detach().clone();
    test::expect_words(test::message_of<CollectiveFailure>(
                           [&] { load(out / "step-00000001", other.handle, other.sgd); }),
                       {"repeated", "found an expanded one"});
    EXPECT_TRUE(other.model.named_parameters()["plain"].equal(before));
  });
}

TEST(AsyncContent, IsOfTheHandleThatIsGiven) {
  TemporaryFolder later, at_once;
  run_as_threads(2, [&](Group group) {
    Training small(ShardLevel::full, "adamw", group), other(std::nullopt, "our_adamw", group);
    CollectionTraining collection(3, group);
    AsyncSaver saver(group);
    for (int step = 0; step < 3; ++step) {
      for (Training* training : {&small, &other}) {
        training->step();
        const std::string name = training == &small ? "small" : "other";
        saver.save(later / name, training->handle, *training->optimizer, {.step = training->steps});
        training->save(at_once / name);
      }
      saver.save(later / "collection", collection.handle, collection.sgd, {.step = step});
      save(at_once / "collection", collection.handle, collection.sgd, {.step = step});
    }
  });
  for (const char* name : {"small", "other", "collection"}) {
    ASSERT_EQ(list_checkpoints(at_once / name).size(), 3u);
    for (const fs::path& folder : list_checkpoints(at_once / name))
      expect_same_files(later / name / folder.filename(), folder);
  }
}

// Each handle may have its own saver, and both savers write at the same time.
TEST(AsyncContent, OfTwoSaversAtOnce) {
  TemporaryFolder later, at_once;
  run_as_threads(3, [&](Group group) {
    Training first(ShardLevel::full, "adamw", group), second(std::nullopt, "adamw", group);
    AsyncSaver of_first(group), of_second(group);
    for (int step = 0; step < 4; ++step) {
      first.step();
      second.step();
      of_first.save(later / "first", first.handle, *first.optimizer, {.step = first.steps});
      of_second.save(later / "second", second.handle, *second.optimizer, {.step = second.steps});
      first.save(at_once / "first");
      second.save(at_once / "second");
    }
  });
  for (const char* name : {"first", "second"})
    for (const fs::path& folder : list_checkpoints(at_once / name))
      expect_same_files(later / name / folder.filename(), folder);
}

// Blocks every flush until the disk is opened.
class ClosedDisk {
 public:
  ClosedDisk()
      : hook_([this](const std::string&) {
          ++waiting_;
          while (!open_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return 0;
        }) {}
  void wait_for_somebody() const {
    while (waiting_ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void open() { open_ = true; }

 private:
  std::atomic<int> waiting_{0};
  std::atomic<bool> open_{false};
  test::FlushHook hook_;
};

// Loads an older step while the newer one is written; both checkpoints are correct.
TEST(AsyncContent, StaysWhileAnotherCheckpointIsLoaded) {
  TemporaryFolder out, expected;
  run_as_threads(3, [&](Group group) {
    Training training(ShardLevel::full, "adamw", group);
    training.step();
    training.save(out.path());
    training.step();
    training.save(expected.path());
  });
  ClosedDisk disk;
  run_as_threads(3, [&](Group group) {
    Training training(ShardLevel::full, "adamw", group);
    training.load(out.path());
    AsyncSaver saver(group);
    training.step();
    saver.save(out.path(), training.handle, *training.optimizer, {.step = 2});
    disk.wait_for_somebody();
    training.load(out.path());
    EXPECT_EQ(training.steps, 1);
    EXPECT_TRUE(saver.is_writing());
    group.barrier().wait();
    disk.open();
    saver.wait();
    training.load(out.path());
    EXPECT_EQ(training.steps, 2);
  });
  test::expect_same_checkpoint(out / "step-00000002", expected / "step-00000002");
}

// The other thread spins until save() returns and then overwrites the weight at once.
TEST(AsyncContent, IsNotWhatAnotherThreadWritesNext) {
  TemporaryFolder out;
  torch::nn::Linear model(1024, 2048);
  Handle handle = DistributedDataParallel(model, Group());
  torch::optim::SGD sgd(handle.parameters(), 0.1);
  AsyncSaver saver{Group()};
  for (int step = 0; step < 5; ++step) {
    std::atomic<bool> is_saved{false};
    {
      at::NoGradGuard no_grad;
      model->weight.fill_(step);
    }
    std::jthread writer([&] {
      at::NoGradGuard no_grad;
      while (!is_saved) {
      }
      model->weight.fill_(-1);
    });
    saver.save(out.path(), handle, sgd, {.step = step});
    is_saved = true;
  }
  saver.wait();
  for (int step = 0; step < 5; ++step) {
    const fs::path folder = out / checkpoint_name(step);
    EXPECT_TRUE(
        read_safetensors(folder / model_file).tensors.at("weight").eq(step).all().item<bool>());
  }
}

// The first save completes and remains; the error of the second one is thrown by the third.
TEST(AsyncContent, OfTheFirstOfTwoSavesStaysWhereTheSecondFindsNoRoom) {
  TemporaryFolder out;
  test::run_group(test::BackendKind::shm, 2, [&](Group group) {
    Training training(ShardLevel::full, "adamw", group);
    AsyncSaver saver(group);
    const auto save_next = [&] {
      training.step();
      saver.save(out.path(), training.handle, *training.optimizer, {.step = training.steps});
    };
    save_next();
    saver.wait();
    {
      test::SmallDisk disk(300);
      save_next();
      while (saver.is_writing()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    test::expect_words(test::message_of<CollectiveFailure>(save_next),
                       {"reserving ", "File too large"});
    EXPECT_EQ(names_in(out.path()), std::vector<std::string>{"step-00000001"});
    saver.save(out.path(), training.handle, *training.optimizer, {.step = training.steps});
    saver.wait();
    EXPECT_EQ(names_in(out.path()), (std::vector<std::string>{"step-00000001", "step-00000003"}));
  });
  for (const fs::path& folder : list_checkpoints(out.path())) verify(folder);
}

// The next call reports the death to the other ranks in one line, and existing checkpoints are
// complete.
TEST(AsyncContent, IsWholeWhereARankIsKilledWhileItIsWritten) {
  for (int killed : {0, 2}) {
    TemporaryFolder out;
    test::RankRendezvous place(test::BackendKind::shm, 3);
    test::RankProcesses ranks(3, [&](int rank) {
      Group group = place.join(rank);
      Training training(ShardLevel::full, "adamw", group);
      AsyncSaver saver(group);
      training.step();
      saver.save(out.path(), training.handle, *training.optimizer, {.step = 1});
      saver.wait();
      test::FlushHook hook([&](const std::string& path) {
        if (rank == killed && path.find("step-00000002") != std::string::npos) ::raise(SIGKILL);
        return 0;
      });
      saver.save(out.path(), training.handle, *training.optimizer, {.step = 2});
      const std::string line = test::message_of<PeerLost>([&] { saver.wait(); });
      EXPECT_EQ(line.find('\n'), std::string::npos) << line;
      saver.wait();  // the error was thrown before
    });
    auto results = ranks.wait(std::chrono::seconds(60));
    for (int rank = 0; rank < 3; ++rank)
      if (rank != killed) EXPECT_TRUE(results[static_cast<std::size_t>(rank)].ok());
    EXPECT_EQ(list_checkpoints(out.path()), std::vector<fs::path>{out / "step-00000001"});
    verify(out / "step-00000001");
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
