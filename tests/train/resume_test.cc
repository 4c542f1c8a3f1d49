// Messages and refusals of a resumed run, and the lock on a run folder.
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/train/trainer.h>
#include "checkpoint/layout_json.h"
#include "train/configuration.h"

#include "support/temporary_folder.h"
#include "support/torch/ranks.h"
#include "sys/file_lock.h"
#include "train/messages.h"
#include "train/runs.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using test::BackendKind;
using test::TemporaryFolder;

// Returns every file below the folder with its content, except the lock.
std::map<std::string, std::string> files_below(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename() == "run.lock") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path()] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

// Expects that every rank ends with one line that contains `words`, and that the folder does not
// change.
void expect_not_resumed(const RunSetup& options, int ranks, const std::string& words) {
  auto before = files_below(options.out);
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  test::run_group(BackendKind::shm, ranks, [&](Group group) {
    std::string message = test::message_of([&] { (void)train(options, group); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  });
  EXPECT_TRUE(files_below(options.out) == before);
  EXPECT_FALSE(fs::exists(fs::path(options.out) / "run.lock"));
}

RunSetup finished_gpt(const TemporaryFolder& folder) {
  RunSetup options = tiny_gpt(folder);
  run(1, options);
  options.resume = true;
  options.steps = 12;
  return options;
}

fs::path checkpoint_of(const RunSetup& options, std::int64_t step, const std::string& name) {
  return fs::path(options.out) / checkpoint::checkpoint_name(step) / name;
}

// Rewrites the file with one tensor changed and valid checksums.
void change(const fs::path& file, const std::string& tensor,
            const std::function<at::Tensor(at::Tensor)>& how) {
  checkpoint::NamedTensors tensors = checkpoint::read_safetensors(file).tensors;
  tensors.at(tensor) = how(tensors.at(tensor));
  checkpoint::write_safetensors(file, tensors);
  checkpoint::LayoutJson json = checkpoint::parse_json_text(
      file.parent_path(), checkpoint::read_json_text(file.parent_path()));
  checkpoint::seal(json, file.parent_path());
  std::ofstream(file.parent_path() / "layout.json") << checkpoint::json_text(json);
}

void overwrite(const fs::path& file, std::int64_t from_end) {
  std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
  bytes.seekp(-from_end, std::ios::end);
  bytes.put('\x55').put('\xaa');
}

TEST(ResumeChecks, DtypesOfModelAndOptimizerAreChecked) {
  TemporaryFolder folder;
  RunSetup options = finished_gpt(folder);
  const fs::path model = checkpoint_of(options, 8, "model.safetensors");
  const std::string name = "transformer.ln_f.weight";
  change(model, name, [](at::Tensor x) { return x.to(at::kDouble); });
  expect_not_resumed(options, 2,
                     model.string() + ": " + name + ": expected dtype Float, found Double");
  change(model, name, [](at::Tensor x) { return x.to(at::kFloat); });
  const fs::path optimizer = checkpoint_of(options, 8, "optimizer.safetensors");
  change(optimizer, "optimizer." + name + ".exp_avg",
         [](at::Tensor x) { return x.view(at::kInt).clone(); });
  expect_not_resumed(options, 2,
                     optimizer.string() + ": the checkpoint's optimizer." + name + ".exp_avg");
}

TEST(ResumeChecks, RandomStatesThatNoGeneratorTakesAreABadFile) {
  for (const auto& state : {torch::zeros(5056, at::kByte), torch::zeros(7, at::kByte),
                            torch::zeros(5056), torch::zeros({0}, at::kByte)}) {
    TemporaryFolder folder;
    RunSetup options = tiny_mlp(folder);
    run(2, options);
    options.resume = true;
    options.keep_checkpoints = 1;
    const fs::path random = checkpoint_of(options, 8, "random.safetensors");
    change(random, "rank1", [&](const at::Tensor&) { return state; });
    expect_not_resumed(options, 2, random.string() + ": rank1: ");
  }
}

TEST(ResumeChecks, ADamagedCheckpointLeadsToTheNewestThatIsWhole) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.steps = 12;
  options.save_every = 3;
  run(1, options);
  const auto good = files_below(options.out);
  options.resume = true;
  options.command = "lockstep train mlp --out 'a b'";
  overwrite(checkpoint_of(options, 12, "optimizer.safetensors"), 100);
  fs::remove(checkpoint_of(options, 9, "layout.json"));
  expect_not_resumed(options, 2, "is damaged: expected ");
  expect_not_resumed(
      options, 2,
      "; the newest older checkpoint that is whole is step-00000006, go on from it with: "
      "lockstep train mlp --out 'a b' --resume-from step-00000006");
  overwrite(checkpoint_of(options, 6, "model.safetensors"), 10);
  overwrite(checkpoint_of(options, 3, "random.safetensors"), 10);
  expect_not_resumed(options, 1, "; no older checkpoint in " + options.out + " is whole");
}

TEST(ResumeChecks, ARunGoesOnFromTheCheckpointThatIsNamed) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.steps = 12;
  run(1, options);
  RunSetup again = options;
  again.out += "-again";
  fs::copy(options.out, again.out, fs::copy_options::recursive);
  overwrite(checkpoint_of(again, 12, "model.safetensors"), 100);
  again.resume_from = "step-4";
  run(1, again);
  EXPECT_EQ(distance(options.out, again.out), 0);
  expect_same_rows(options, again);
  // Newer checkpoints are kept under other names, and the repeated ones exist.
  EXPECT_TRUE(fs::exists(fs::path(again.out) / "abandoned-step-00000012/model.safetensors"));
  EXPECT_TRUE(fs::exists(fs::path(again.out) / "abandoned-step-00000008/model.safetensors"));
  EXPECT_EQ(checkpoint::list_checkpoints(again.out).size(), 3u);
  again.resume_from = "8";
  run(1, again);
  EXPECT_TRUE(fs::exists(fs::path(again.out) / "abandoned-step-00000012-2"));
  std::string latest;
  std::ifstream(fs::path(again.out) / "LATEST") >> latest;
  EXPECT_EQ(latest, "step-00000012");
  again.resume_from = "step-5";
  expect_not_resumed(again, 1, "--resume-from step-5: no such checkpoint in " + again.out);
  again.resume_from = "\x1b[31m";
  expect_not_resumed(again, 1, "--resume-from \\x1b[31m: no such checkpoint");
}

// Models of repeated steps are not mistaken for models of the new run.
TEST(ResumeChecks, ModelsOfLaterStepsAreSetAside) {
  for (const char* from : {"step-4", ""}) {
    TemporaryFolder folder;
    RunSetup options = tiny_mlp(folder);
    options.steps = 12;
    options.eval_every = 4;
    run(1, options);
    const fs::path out = options.out;
    const auto step_in = [&](const char* name) {
      return checkpoint::read_safetensors(out / name).metadata.at("step");
    };
    ASSERT_EQ(step_in("best.safetensors"), "12");
    options.resume = true;
    options.resume_from = from;
    if (options.resume_from.empty())  // simulates lost later checkpoints
      for (const char* step : {"step-00000008", "step-00000012"}) fs::remove_all(out / step);
    options.lr = 1e-9;  // the loss does not improve any more
    options.steps = 8;
    Report report = train(options, Group());
    EXPECT_NE(report.last_line.find(" best_step=8 "), std::string::npos) << report.last_line;
    EXPECT_EQ(step_in("model.safetensors"), "8");
    EXPECT_EQ(step_in("best.safetensors"), "8");
    EXPECT_EQ(step_in("abandoned-model.safetensors"), "12");
    EXPECT_EQ(step_in("abandoned-best.safetensors"), "12");
    EXPECT_EQ(metrics_of(out).size(), 8u);
  }
}

TEST(ResumeChecks, OtherDataIsRefusedUnlessItIsWanted) {
  TemporaryFolder folder;
  RunSetup options = finished_gpt(folder);
  std::ofstream(options.data, std::ios::app) << "banana";
  expect_not_resumed(options, 2,
                     options.data + ": expected the data that the checkpoint was made with");
  options.allow_other_data = true;
  run(2, options);
  EXPECT_EQ(metrics_of(options.out).size(), 12u);
}

TEST(ResumeChecks, TheSameDataElsewhereIsTheSame) {
  TemporaryFolder folder;
  RunSetup options = finished_gpt(folder);
  fs::rename(options.data, folder / "moved.txt");
  options.data = folder / "moved.txt";
  run(2, options);
  EXPECT_EQ(metrics_of(options.out).size(), 12u);
}

TEST(ResumeChecks, OtherDigitsAreRefused) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  run(1, options);
  options.resume = true;
  test::write_tiny_digits(folder.path(), 50, 18);
  expect_not_resumed(options, 1, "--allow-other-data goes on with it");
}

TEST(ResumeChecks, AModelIsNotChanged) {
  TemporaryFolder folder;
  RunSetup options = finished_gpt(folder);
  RunSetup heads = options, words = options, task = options;
  heads.heads = 4;  // with the same shapes
  expect_not_resumed(heads, 2, "--resume: heads is 4, the checkpoint's is 2");
  words.vocabulary = "bytes";
  expect_not_resumed(words, 1, "--resume: vocabulary is bytes, the checkpoint's is chars");
  task = tiny_mlp(folder);
  task.resume = true;
  expect_not_resumed(task, 1, "--resume: task is mlp, the checkpoint's is gpt");
}

TEST(ResumeChecks, FewerStepsThanMadeAreRefused) {
  TemporaryFolder folder;
  RunSetup options = finished_gpt(folder);
  options.steps = 7;
  expect_not_resumed(
      options, 2,
      "the checkpoint is at step 8 already, expected --steps that make more steps than "
      "that, found 7");
}

// Steps of a checkpoint are counted as epochs, so epochs must have as many steps as before.
TEST(ResumeChecks, EpochsOfAnotherLengthAreRefused) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  run(1, options);
  options.resume = true;
  options.epochs = 4;
  RunSetup other = options;
  other.batch = 24;
  expect_not_resumed(
      other, 2,
      "--resume: the checkpoint's epochs have 5 steps, those of this run (--batch 24) have 3, so "
      "its 10 steps are other epochs: expected the same --batch and as much data, or --steps "
      "instead of --epochs");
  run(2, options);  // on any number of ranks an epoch has as many steps
  EXPECT_EQ(metrics_of(options.out).size(), 20u);
  other.epochs = 0;
  other.steps = 22;
  run(2, other);
  EXPECT_EQ(metrics_of(options.out).size(), 22u);
  options.epochs = 5;
  expect_not_resumed(options, 1, "the checkpoint's epochs have 3 steps");
  // Checkpoints of earlier versions do not say it.
  const fs::path last = fs::path(options.out) / checkpoint::checkpoint_name(22);
  checkpoint::LayoutJson json = checkpoint::parse_json_text(last, checkpoint::read_json_text(last));
  EXPECT_EQ(json.state.progress.erase("steps_per_epoch"), 1u);
  checkpoint::seal(json, last);
  std::ofstream(last / "layout.json") << checkpoint::json_text(json);
  run(1, options);
  EXPECT_EQ(metrics_of(options.out).size(), 25u);
}

TEST(ResumeChecks, RanksThatReadDifferentDataAreRefused) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  test::run_group(BackendKind::shm, 2, [&](Group group) {
    RunSetup own = options;
    if (group.rank() == 1) {
      own.data = folder / "other.txt";
      std::ofstream(own.data) << std::ifstream(options.data).rdbuf() << "abacus";
    }
    std::string message = test::message_of([&] { (void)train(own, group); });
    EXPECT_NE(message.find("rank 1 has read other data than rank 0"), std::string::npos) << message;
  });
  EXPECT_FALSE(fs::exists(options.out));
}

TEST(ResumeChecks, ConfigKeepsWhereTheDataIs) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  options.data = "text.txt";
  run(1, options);
  fs::current_path(before);
  const fs::path config = fs::path(options.out) / "config.toml";
  Configured read{RunSetup("gpt")};
  apply_config(read.all, read_config(config));
  EXPECT_EQ(setting_of(*read.task, "data"), fs::path(fs::canonical(folder.path()) / "text.txt"));
  EXPECT_EQ(read.all.options.places.at("data"), config.string() + " line 2");
  EXPECT_FALSE(read.all.options.resume);
  RunSetup kept = options;
  kept.resume = true;
  kept.data = folder / "missing.txt";
  kept.places["data"] = "out/config.toml line 2";
  expect_not_resumed(kept, 1, "(data is set in out/config.toml line 2)");
}

TEST(ResumeChecks, TwoRunsNeverShareAFolder) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.steps = 10'000'000;
  options.save_every = 0;
  test::run_group(BackendKind::shm, 1, [&](Group group) {
    std::string message;
    std::jthread second([&] {
      std::error_code not_there_yet;
      while (fs::file_size(fs::path(options.out) / "metrics.jsonl", not_there_yet) == 0 ||
             not_there_yet)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      sys::FileLock lock(fs::path(options.out) / "run.lock");
      EXPECT_EQ(lock.state(), sys::FileLock::State::busy);
      EXPECT_NE(lock.about().find("process " + std::to_string(::getpid())), std::string::npos);
      ::kill(::getpid(), SIGTERM);
    });
    EXPECT_EQ(train(options, group).signal, SIGTERM);
  });
  EXPECT_FALSE(fs::exists(fs::path(options.out) / "run.lock"));
  const sys::FileLock held(fs::path(options.out) / "run.lock");
  for (bool resume : {false, true}) {
    options.resume = resume;
    auto before = files_below(options.out);
    std::string message = test::message_of([&] { (void)train(options, Group()); });
    EXPECT_EQ(message.find(options.out + ": process " + std::to_string(::getpid()) + " on host "),
              0u)
        << message;
    EXPECT_TRUE(files_below(options.out) == before);
  }
}

}  // namespace
}  // namespace lockstep::train
