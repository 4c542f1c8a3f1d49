// The folder of a run: a run begins in it or resumes, and handles earlier files.
#include "train/run_folder.h"
#include "train/configuration.h"

#include <lockstep/base/error.h>

#include "support/temporary_folder.h"
#include "train/messages.h"
#include "train/run_setup.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text = "x") {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

// The run of a test, in its own folder.
struct Place {
  explicit Place(const std::function<void(RunSetup&)>& change = [](RunSetup&) {}) {
    RunSetup setup("mlp");
    setup.out = out;
    change(setup);
    configured = std::make_unique<Configured>(setup);
  }
  [[nodiscard]] RunFolder folder() const { return RunFolder(configured->all); }

  test::TemporaryFolder above;
  fs::path out = above / "out";
  std::unique_ptr<Configured> configured;
};

// Sets environment variables of a launcher during a test.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const auto& [name, value] : values) {
      ::setenv(name.c_str(), value.c_str(), 1);
      names_.push_back(name);
    }
  }
  ~Variables() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::vector<std::string> names_;
};

// The callback ends the round; at that time, the folder has no file that would make it look like
// another run's.
TEST(RunFolder, IsTakenBeforeAnythingIsInIt) {
  const test::TemporaryFolder folder;
  RunSetup setup("mlp");
  setup.out = folder / "out";
  Configured configured{setup};
  {
    RunFolder first(configured.all);
    (void)first.find_checkpoint();
    EXPECT_THROW(first.open({.is_taken = [] { throw std::runtime_error("a lost rank"); }}),
                 std::runtime_error);
    EXPECT_FALSE(std::filesystem::exists(folder / "out/metrics.jsonl"));
  }
  RunFolder next(configured.all);
  EXPECT_FALSE(next.find_checkpoint());
  bool is_taken = false;
  next.open({.is_taken = [&] { is_taken = true; }});
  EXPECT_TRUE(is_taken);
  EXPECT_TRUE(std::filesystem::exists(folder / "out/metrics.jsonl"));
}

// Rank 0 of an earlier round is on a host that was cut off: it still holds the lock, but does not
// write any more.
TEST(RunFolder, IsTakenOverFromAnEarlierRoundThatStillHoldsTheLock) {
  const test::TemporaryFolder folder;
  RunSetup setup("mlp");
  setup.out = folder / "out";
  Configured configured{setup};
  RunFolder cut_off(configured.all, RoundOfRun{"run", 0});
  EXPECT_FALSE(cut_off.find_checkpoint());
  cut_off.open({});
  cut_off.append({.step = 1});
  RunFolder other(configured.all, RoundOfRun{"another", 5});
  EXPECT_THROW((void)other.newest_checkpoint(), BadInput) << "it is at work";
  RunFolder next(configured.all, RoundOfRun{"run", 2});
  EXPECT_FALSE(next.newest_checkpoint());
  EXPECT_THROW(cut_off.append({.step = 2}), PeerLost);
  EXPECT_THROW(cut_off.write_result("done"), PeerLost);
  EXPECT_THROW(cut_off.check(), PeerLost);
  next.open({.resumed_at = 1, .is_continued = true});
  next.append({.step = 2});
  const auto notices = next.take_notices();
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_NE(notices[0].find("of an earlier round of this run, still holds the lock"),
            std::string::npos);
}

// A round never takes over the folder of another run.
TEST(RunFolder, OfAnotherRunIsNotTaken) {
  const test::TemporaryFolder folder;
  RunSetup setup("mlp");
  setup.out = folder / "out";
  Configured configured{setup};
  fs::create_directories(folder / "out/step-00000004");
  RunFolder second(configured.all);
  EXPECT_THROW(second.open({.is_taken = [] { FAIL() << "it was taken"; }}), BadInput);
}

// A run that was killed before its first checkpoint left nothing that could be resumed.
TEST(RunFolder, ARunThatSavedNothingIsBegunAgain) {
  Place place;
  write(place.out / "config.toml");
  write(place.out / "metrics.jsonl", "{\"step\":1}\n");
  write(place.out / "flight-rank-1.json");
  RunFolder folder(place.configured->all);
  EXPECT_FALSE(folder.find_checkpoint());
  folder.open({});
  EXPECT_EQ(fs::file_size(place.out / "metrics.jsonl"), 0U);
  const auto notices = folder.take_notices();
  ASSERT_EQ(notices.size(), 2U);
  for (const char* name : {"metrics.jsonl", "flight-rank-1.json"}) {
    const std::string aside = std::string("abandoned-") + name;
    EXPECT_TRUE(fs::exists(place.out / aside));
    EXPECT_NE(
        notices[*name == 'm' ? 0 : 1].find("is now " + aside + ": the run before had saved no "),
        std::string::npos);
  }
  EXPECT_FALSE(fs::exists(place.out / "flight-rank-1.json"));
}

TEST(RunFolder, AModelWithoutACheckpointIsKept) {
  for (const char* model : {"best.safetensors", "model.safetensors"}) {
    Place place;
    write(place.out / model);
    EXPECT_EQ(test::message_of([&] { place.folder().check_start(); }),
              place.out.string() + " holds " + model +
                  " of a run without a checkpoint: pass --overwrite to replace it, or another "
                  "--out");
    Place again([&](RunSetup& setup) {
      setup.out = place.out;
      setup.resume_auto = true;
    });
    RunFolder folder(again.configured->all);
    EXPECT_FALSE(folder.find_checkpoint());
    folder.open({});
    EXPECT_TRUE(fs::exists(place.out / (std::string("abandoned-") + model)));
  }
}

TEST(RunFolder, SaysHowARunIsContinuedOrReplaced) {
  Place place;
  fs::create_directories(place.out / "step-00000004");
  EXPECT_EQ(test::message_of([&] { place.folder().check_start(); }),
            place.out.string() +
                " holds a run already: pass --resume to continue it, --overwrite to replace it, "
                "or another --out");
  Place empty([](RunSetup& setup) { setup.resume = true; });
  EXPECT_EQ(test::message_of([&] { empty.folder().check_start(); }),
            "--resume: expected a checkpoint in " + empty.out.string() +
                ", found none; --resume auto begins the run then");
}

TEST(RunFolder, ResumeAutoGoesOnOrBegins) {
  Place place([](RunSetup& setup) { setup.resume_auto = true; });
  EXPECT_FALSE(place.folder().find_checkpoint());
  fs::create_directories(place.out / "step-00000004");
  fs::create_directories(place.out / "step-00000008");
  EXPECT_EQ(place.folder().find_checkpoint(), place.out / "step-00000008");
}

// Files whose names do not belong to a run stay.
TEST(RunFolder, OverwriteRemovesTheFilesOfRunsAndNothingElse) {
  Place place([](RunSetup& setup) { setup.overwrite = true; });
  for (const char* name :
       {"config.toml", "metrics.jsonl", "result.txt", "LATEST", "best.safetensors",
        "model.safetensors", "step-00000004/layout.json", "abandoned-step-00000008-2/layout.json",
        "abandoned-best.safetensors", "flight-rank-12.json", ".round",
        ".metrics.jsonl.0123456789abcdef.partial"})
    write(place.out / name);
  const std::set<std::string> others{"notes.txt",          "step-4",    "abandoned-notes.txt",
                                     "flight-rank-x.json", "data",      "step-00000004.tar",
                                     "abandoned-",         "model.onnx"};
  for (const std::string& name : others) write(place.out / name);
  {
    RunFolder folder(place.configured->all);
    EXPECT_FALSE(folder.find_checkpoint());
    EXPECT_TRUE(fs::exists(place.out / "best.safetensors")) << "removed before the run begins";
    folder.open({});
    const auto notices = folder.take_notices();
    ASSERT_EQ(notices.size(), 1U);
    EXPECT_TRUE(notices[0].starts_with("--overwrite: removed from " + place.out.string() + ": "))
        << notices[0];
  }
  std::set<std::string> expected = others;
  expected.insert({"config.toml", "metrics.jsonl"});
  EXPECT_EQ(names_in(place.out), expected);
  EXPECT_EQ(fs::file_size(place.out / "metrics.jsonl"), 0U);
}

TEST(RunFolder, ARestartOfTheJobGoesOnWithoutAnOption) {
  for (const bool overwrite : {false, true}) {
    Place place([&](RunSetup& setup) { setup.overwrite = overwrite; });
    {
      const Variables first{{{"TORCHELASTIC_RUN_ID", "one"}, {"TORCHELASTIC_RESTART_COUNT", "0"}}};
      place.folder().open({});
    }
    const Variables second{{{"TORCHELASTIC_RUN_ID", "one"}, {"TORCHELASTIC_RESTART_COUNT", "1"}}};
    EXPECT_FALSE(place.folder().find_checkpoint()) << "it was killed before its first checkpoint";
    write(place.out / "best.safetensors");
    EXPECT_FALSE(place.folder().find_checkpoint());
    fs::create_directories(place.out / "step-00000004");
    RunFolder folder(place.configured->all);
    EXPECT_EQ(folder.find_checkpoint(), place.out / "step-00000004");
    folder.open({.resumed_at = 4});
    EXPECT_TRUE(fs::exists(place.out / "best.safetensors")) << "it is made again";
    EXPECT_TRUE(folder.take_notices().empty());
  }
}

// A restart must not resume a run that another job has left in the folder.
TEST(RunFolder, ARestartOfAnotherJobIsRefused) {
  Place place;
  {
    const Variables first{{{"TORCHELASTIC_RUN_ID", "one"}}};
    place.folder().open({});
  }
  fs::create_directories(place.out / "step-00000004");
  {
    const Variables other{{{"TORCHELASTIC_RUN_ID", "two"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}};
    EXPECT_THROW((void)place.folder().find_checkpoint(), BadInput);
  }
  const Variables same_once_more{{{"TORCHELASTIC_RUN_ID", "one"}}};
  EXPECT_THROW((void)place.folder().find_checkpoint(), BadInput);
}

TEST(RunFolder, RunsOfTorchrunWithoutANameAreToldApart) {
  Place place;
  const Variables restarted{{{"TORCHELASTIC_RUN_ID", "none"}, {"TORCHELASTIC_RESTART_COUNT", "1"}}};
  place.folder().open({});
  fs::create_directories(place.out / "step-00000004");
  EXPECT_EQ(place.folder().find_checkpoint(), place.out / "step-00000004");
  write(place.out / ".job", "launch none of process 1 on host elsewhere\n");
  EXPECT_THROW((void)place.folder().find_checkpoint(), BadInput);
}

TEST(RunFolder, ARequeuedJobOfSlurmGoesOnWithoutAnOption) {
  Place place;
  {
    const Variables first{{{"SLURM_JOB_ID", "71"}, {"TORCHELASTIC_RUN_ID", "one"}}};
    place.folder().open({});
  }
  fs::create_directories(place.out / "step-00000004");
  const Variables requeued{
      {{"SLURM_JOB_ID", "71"}, {"SLURM_RESTART_COUNT", "1"}, {"TORCHELASTIC_RUN_ID", "two"}}};
  EXPECT_EQ(place.folder().find_checkpoint(), place.out / "step-00000004");
}

TEST(RunFolder, PartsOfFilesThatAKilledRunWasWritingAreRemoved) {
  Place place;
  write(place.out / ".metrics.jsonl.0123456789abcdef.partial");
  write(place.out / ".best.safetensors.0123456789abcdef.partial");
  write(place.out / ".notes.txt.0123456789abcdef.partial");
  place.folder().open({});
  EXPECT_EQ(names_in(place.out), (std::set<std::string>{"config.toml", "metrics.jsonl",
                                                        ".notes.txt.0123456789abcdef.partial"}));
}

checkpoint::TrainingState state_of(const RunSetup& options, int ranks) {
  checkpoint::TrainingState state;
  state.config = Configured(options).all.kept();
  state.ranks = ranks;
  return state;
}

TEST(CheckpointFit, SaysWhatChanged) {
  RunSetup before("gpt");
  before.out = "a";
  before.data = "text.txt";
  const auto state = state_of(before, 2);
  EXPECT_EQ(changes_since(Configured(before).all, 2, state), "");
  RunSetup now = before;
  now.out = "b";
  now.ranks = 7;  // the actual number of ranks counts
  now.resume = now.allow_other_data = true;
  now.data = std::filesystem::absolute("text.txt");
  EXPECT_EQ(changes_since(Configured(now).all, 2, state), "");
  now.lr = 0.25;
  now.sharding.offload = "/x\n";
  now.mesh = parse_axes("dp=3");
  EXPECT_EQ(changes_since(Configured(now).all, 3, state),
            "lr 0.001 -> 0.25, mesh none -> dp=3, offload none -> /x\\n, ranks 2 -> 3");
}

TEST(CheckpointFit, TheModelStaysWhatItIs) {
  const RunSetup before("gpt");
  const auto state = state_of(before, 1);
  RunSetup now = before;
  now.lr = 1;
  now.dropout = 0.5;
  EXPECT_NO_THROW(check_same_model(Configured(now).all, state));
  for (const char* name : {"layers", "heads", "width", "block"}) {
    Configured other(before);
    other.all.settings().set(name, "12");
    EXPECT_EQ(test::message_of([&] {
                check_same_model(other.all, state);
              }).find(std::string("--resume: ") + name + " is 12, the checkpoint's is "),
              0u);
  }
  EXPECT_THROW(check_same_model(Configured(RunSetup("mnist")).all, state), BadInput);
}

TEST(CheckpointFit, ErrorsOfAFileBeginWithItsName) {
  EXPECT_EQ(test::message_of([] { in_file("out/a", [] { throw BadInput("is bad"); }); }),
            "out/a: is bad");
  EXPECT_THROW(in_file("a", [] { throw SystemError("x", 2); }), SystemError);
}

// A script that waits for the result of a resumed run must not find that of the run before.
TEST(RunFolder, TheResultOfTheRunBeforeIsRemoved) {
  Place place([](RunSetup& setup) { setup.resume_auto = true; });
  write(place.out / "step-00000004/layout.json");
  write(place.out / "result.txt", "done: steps=4\n");
  RunFolder folder(place.configured->all);
  EXPECT_TRUE(folder.find_checkpoint());
  folder.open({.resumed_at = 4});
  EXPECT_FALSE(fs::exists(place.out / "result.txt"));
}

}  // namespace
}  // namespace lockstep::train
