#include "launch/rank_processes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <sys/stat.h>

#include "support/temporary_folder.h"

namespace lockstep::launch {
namespace {

struct ProgramTest : testing::Test {
  void make(const std::string& name, mode_t mode) {
    const std::string file = folder / name;
    std::ofstream(file) << "true\n";
    ::chmod(file.c_str(), mode);
  }
  test::TemporaryFolder folder;
  std::string path = "/nonexistent:" + folder.path().string();
};

TEST_F(ProgramTest, ANameIsLookedForInThePath) {
  make("tool", 0755);
  const FoundProgram found = find_program("tool", path);
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.file, folder / "tool");
}

TEST_F(ProgramTest, ThenInTheCurrentFolder) {
  make("tool", 0755);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_EQ(find_program("tool", "/nonexistent").file, "./tool");
  std::filesystem::current_path(before);
}

TEST_F(ProgramTest, APathIsTakenAsItIs) {
  make("tool", 0755);
  EXPECT_EQ(find_program(folder / "tool", "").file, folder / "tool");
}

TEST_F(ProgramTest, NotFoundIs127) {
  const FoundProgram found = find_program("tool", path);
  EXPECT_EQ(found.exit_code, 127);
  EXPECT_EQ(found.problem, "program 'tool' was not found in PATH or in the current folder");
  EXPECT_EQ(find_program("/nonexistent/tool", path).problem,
            "program '/nonexistent/tool' was not found");
}

TEST_F(ProgramTest, NotExecutableIs126AndSaysWhatToDo) {
  make("script.py", 0644);
  for (const std::string& name : {std::string("script.py"), std::string(folder / "script.py")}) {
    const FoundProgram found = find_program(name, path);
    EXPECT_EQ(found.exit_code, 126);
    EXPECT_NE(found.problem.find("script.py' is not executable: chmod +x"), std::string::npos)
        << found.problem;
  }
}

TEST_F(ProgramTest, AFolderIsNoProgram) {
  EXPECT_EQ(find_program(folder.path(), path).exit_code, 126);
  // A folder of that name in PATH is skipped, as in shells.
  std::filesystem::create_directory(folder / "tool");
  EXPECT_EQ(find_program("tool", path).exit_code, 127);
}

TEST_F(ProgramTest, AnExecutableFurtherDownThePathWins) {
  make("tool", 0644);
  const test::TemporaryFolder second;
  std::ofstream(second / "tool") << "true\n";
  ::chmod((second / "tool").c_str(), 0755);
  EXPECT_EQ(find_program("tool", path + ":" + second.path().string()).file, second / "tool");
}

}  // namespace
}  // namespace lockstep::launch
