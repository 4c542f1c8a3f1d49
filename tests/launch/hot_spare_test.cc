// Hot spares: when a node has one, and which rank it becomes.
#include "launch/run_agent.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <lockstep/store/open.h>
#include "rank_env/rank_info.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using test::expect_words;
namespace fs = std::filesystem;

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "none" : value;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Blocks until a hot spare waits.
void wait_for_hot_spare(const fs::path& folder) {
  for (;; std::this_thread::sleep_for(2ms))
    for (const auto& entry : fs::directory_iterator(folder))
      if (text_of("/proc/" + entry.path().filename().string() + "/comm") == "hot-spare\n") return;
}

// Blocks until `count` hot spares have started and the agent has reaped each of them.
void wait_for_ended(const fs::path& folder, int count) {
  for (;; std::this_thread::sleep_for(2ms)) {
    int ended = 0;
    for (const auto& entry : fs::directory_iterator(folder))
      ended += fs::exists("/proc/" + entry.path().filename().string()) ? 0 : 1;
    if (ended >= count) return;
  }
}

// FOLDER gets a file named after the pid of each hot spare. Rank 1 of the first round ends once a
// hot spare waits.
TEST(HotSpareProgram, DISABLED_Waits) {
  const fs::path folder = value_of("FOLDER");
  const bool was_hot_spare = rank_env::is_hot_spare();
  if (was_hot_spare) {
    EXPECT_EQ(value_of("RANK"), "none");
    EXPECT_EQ(value_of("LOCKSTEP_WORKER"), "none");
    std::ofstream(folder / std::to_string(::getpid())).flush();
    if (value_of("MODE") == "fails") std::_Exit(7);
  }
  EXPECT_TRUE(rank_env::is_launched());
  const rank_env::RankInfo info = rank_env::detect_rank();
  EXPECT_EQ(std::to_string(info.rank), value_of("RANK"));
  EXPECT_EQ(value_of("LOCKSTEP_HOT_SPARE_FD"), "none");
  EXPECT_NE(text_of("/proc/self/comm"), "hot-spare\n");
  std::string line;
  const bool has_input = static_cast<bool>(std::getline(std::cin, line));
  const auto store = open_store(value_of("LOCKSTEP_STORE"), rank_env::read_secret(), 20s);
  if (value_of("MODE") != "silent") store->set("lockstep-round/hot-spares", "1");
  const std::string round = value_of("LOCKSTEP_ROUND");
  std::cout << "says " + round + "/" + value_of("RANK") + "/" + value_of("LOCKSTEP_WORKER") +
                   (was_hot_spare ? " from hot spare" : "") + (has_input ? " reads " + line : "")
            << std::endl;
  if (round == "1") std::_Exit(::testing::Test::HasFailure() ? 9 : 0);
  if (info.rank == 1 && value_of("MODE") != "runs") {
    if (value_of("MODE") == "waits") wait_for_hot_spare(folder);
    if (value_of("MODE") == "fails") wait_for_ended(folder, 3);
    ::kill(::getpid(), SIGKILL);
  }
  for (;;) std::this_thread::sleep_for(1s);
}

WorkerSpec waiting(const fs::path& folder, const char* mode, int ranks = 2) {
  WorkerSpec spec{.program = "/proc/self/exe",
                  .arguments = {"--gtest_filter=HotSpareProgram.DISABLED_Waits",
                                "--gtest_also_run_disabled_tests", "--gtest_brief=1"},
                  .ranks = ranks,
                  .max_restarts = 5,
                  .prefix = PrefixStyle::none,
                  .input = StandardInput::none};
  spec.environment.erase("GTEST_OUTPUT");
  spec.environment.emplace("FOLDER", folder.string());
  spec.environment.emplace("MODE", mode);
  return spec;
}

int count(const std::string& text, const std::string& words) {
  int found = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
    ++found;
  return found;
}

TEST(HotSpares, TakesARankThatIsLost) {
  const test::TemporaryFolder folder, logs;
  WorkerSpec spec = waiting(folder.path(), "waits");
  spec.log_folder = logs.path().string();
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error << ran.output;
  EXPECT_EQ(count(ran.output, "says "), 4) << ran.output;
  EXPECT_EQ(count(ran.output, "says 1/0/0.2 from hot spare"), 1) << ran.output;
  EXPECT_EQ(count(ran.output, "says 1/1/0.3\n"), 1) << "there was one only: " << ran.output;
  EXPECT_NE(text_of(logs / "rank-0.log").find("says 1/0/0.2 from hot spare"), std::string::npos);
}

TEST(HotSpares, IsAsLargeAsTheUserSays) {
  for (const int spares : {0, 2}) {
    const test::TemporaryFolder folder;
    WorkerSpec spec = waiting(folder.path(), spares == 0 ? "does not wait" : "waits");
    spec.hot_spares = spares;
    const Ran ran = run_agent(spec);
    EXPECT_EQ(ran.result.exit_code, 0) << ran.error << ran.output;
    EXPECT_LE(count(ran.output, "from hot spare"), spares) << ran.output;
    EXPECT_GE(count(ran.output, "from hot spare"), spares / 2) << ran.output;
  }
}

// For example a Python program, which would start without a rank.
TEST(HotSpares, IsNotOfAProgramThatDoesNotSayThatItCanWait) {
  const test::TemporaryFolder folder;
  const Ran ran = run_agent(waiting(folder.path(), "silent"));
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error << ran.output;
  EXPECT_EQ(count(ran.output, "from hot spare"), 0) << ran.output;
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(HotSpares, OfAProgramThatEndsInItIsGivenUp) {
  const test::TemporaryFolder folder;
  const Ran ran = run_agent(waiting(folder.path(), "fails"));
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error << ran.output;
  EXPECT_EQ(count(ran.output, "from hot spare"), 0) << ran.output;
  expect_words(ran.error, {"no more hot spares are started: 3 ended before they were ready, the "
                           "last with exit code 7\n"});
}

char state_of(pid_t pid) {
  const std::string stat = text_of("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t at = stat.rfind(") ");
  return at == std::string::npos ? 'X' : stat[at + 2];
}

void wait_for_state(pid_t pid, bool stopped) {
  const Deadline limit = Deadline::after(far_too_long);
  while ((state_of(pid) == 'T') != stopped && !limit.passed()) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(state_of(pid) == 'T', stopped);
}

// Ctrl-Z stops the agent.
TEST(HotSpares, IsStoppedWithTheRanks) {
  const test::TemporaryFolder folder;
  WorkerSpec spec = waiting(folder.path(), "runs");
  spec.forward_signals = true;
  test::RankProcesses agent(1, [&](int) { run_agent(spec); });
  wait_for_hot_spare(folder.path());
  const pid_t spares = std::stoi(fs::directory_iterator(folder.path())->path().filename().string());
  ::kill(agent.pid(0), SIGTSTP);
  wait_for_state(agent.pid(0), true);
  wait_for_state(spares, true);
  ::kill(agent.pid(0), SIGCONT);
  wait_for_state(spares, false);
}

// Rank 0 gets the agent's standard input, even if it was a hot spare before.
TEST(HotSpares, Rank0HasTheStandardInput) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int before = ::dup(STDIN_FILENO);
  ::dup2(ends[0], STDIN_FILENO);
  ASSERT_EQ(::write(ends[1], "first\nsecond\n", 13), 13);
  ::close(ends[0]);
  ::close(ends[1]);
  const test::TemporaryFolder folder;
  WorkerSpec spec = waiting(folder.path(), "waits");
  spec.input = StandardInput::rank_0;
  const Ran ran = run_agent(spec);
  ::dup2(before, STDIN_FILENO);
  ::close(before);
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error << ran.output;
  EXPECT_EQ(count(ran.output, "says 0/0/0.0 reads first"), 1) << ran.output;
  EXPECT_EQ(count(ran.output, "reads"), 1) << "the stream took both lines: " << ran.output;
}

}  // namespace
}  // namespace lockstep::launch
