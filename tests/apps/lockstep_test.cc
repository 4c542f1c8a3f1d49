#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <sys/stat.h>

#include "apps/command.h"
#include "support/temporary_folder.h"

namespace lockstep::apps {
namespace {

TEST(Lockstep, HelpListsItsCommands) {
  const Finished help = lockstep_command({"help"});
  EXPECT_EQ(help.status.code, 0);
  for (const char* name : {"  run ", "  info ", "  help "})
    EXPECT_NE(help.output.find(name), std::string::npos) << name;
  EXPECT_EQ(lockstep_command({"--help"}).output, help.output);
  for (const char* word : {"help", "--help", "-h"}) {
    const Finished twice = lockstep_command({"help", word});
    EXPECT_EQ(twice.status.code, 0) << word;
    EXPECT_EQ(twice.output, help.output) << word;
  }
}

// The description in the list of commands names everything that the command can do.
TEST(Lockstep, HelpNamesEveryVerbOfTheCheckpointCommand) {
  if (!std::filesystem::exists(std::string(LOCKSTEP_PROGRAM_DIR) + "/lockstep-checkpoint"))
    GTEST_SKIP() << "lockstep-checkpoint was not built";
  const std::string list = lockstep_command({"help"}).output;
  const std::size_t begin = list.find("\n  checkpoint ");
  ASSERT_NE(begin, std::string::npos) << list;
  const std::string line = list.substr(begin + 1, list.find('\n', begin + 1) - begin - 1);
  for (const char* verb : {"ls", "show", "verify", "diff", "reshard", "convert"})
    EXPECT_NE(line.find(std::string(" ") + verb), std::string::npos) << verb << " in: " << line;
}

TEST(Lockstep, WithoutACommandItIsAMistake) {
  const Finished nothing = lockstep_command({});
  EXPECT_EQ(nothing.status.code, 2);
  EXPECT_TRUE(nothing.error.starts_with("Usage: lockstep COMMAND"));
}

TEST(Lockstep, AnUnknownCommandSuggestsTheNearest) {
  const Finished unknown = lockstep_command({"rnu"});
  EXPECT_EQ(unknown.status.code, 2);
  EXPECT_EQ(unknown.error, "lockstep: unknown command 'rnu'; did you mean 'run'?\n");
}

TEST(Lockstep, SaysItsVersion) {
  for (const char* word : {"--version", "-V", "version"})
    EXPECT_TRUE(lockstep_command({word}).output.starts_with("lockstep 0.")) << word;
}

TEST(Lockstep, ASiblingProgramIsACommand) {
  const test::TemporaryFolder folder;
  std::filesystem::copy_file(lockstep_program(), folder / "lockstep");
  const std::string sibling = folder / "lockstep-greet";
  std::ofstream(sibling) << "#!/bin/sh\necho \"greetings $*\"\nexit 7\n";
  ::chmod(sibling.c_str(), 0755);
  const auto ask = [&](const std::string& words) {
    return lockstep_command(
        {"run", "--prefix", "none", "sh", "-c", folder.path().string() + "/lockstep " + words});
  };
  EXPECT_EQ(ask("greet a 'b c'").output, "greetings a b c\n");
  EXPECT_EQ(ask("greet").status.code, 7);
  EXPECT_NE(ask("help").output.find("  greet"), std::string::npos);
  EXPECT_NE(ask("gret").error.find("did you mean 'greet'?"), std::string::npos);
}

// The setting must exist before LibTorch is loaded, which reads it once.
TEST(Lockstep, ASiblingsThreadsSpinBrieflyUnlessTheUserSaysHowTheyWait) {
  const test::TemporaryFolder folder;
  std::filesystem::copy_file(lockstep_program(), folder / "lockstep");
  const std::string sibling = folder / "lockstep-show";
  std::ofstream(sibling) << "#!/bin/sh\necho [$GOMP_SPINCOUNT][$OMP_WAIT_POLICY]\n";
  ::chmod(sibling.c_str(), 0755);
  const auto ask = [&](const std::string& variable) {
    return lockstep_command({"run", "--prefix", "none", "env", "-u", "GOMP_SPINCOUNT", "-u",
                             "OMP_WAIT_POLICY", variable, folder.path().string() + "/lockstep",
                             "show"})
        .output;
  };
  EXPECT_EQ(ask("A=b"), "[1000][]\n");
  EXPECT_EQ(ask("GOMP_SPINCOUNT=7"), "[7][]\n");
  EXPECT_EQ(ask("OMP_WAIT_POLICY=active"), "[][active]\n");
}

}  // namespace
}  // namespace lockstep::apps
