// `lockstep store` as started by users.
#include "apps/command.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <sys/stat.h>

#include "support/free_port.h"
#include "support/temporary_folder.h"

namespace lockstep::apps {
namespace {

using namespace std::chrono_literals;

std::string make_secret(const test::TemporaryFolder& folder) {
  const std::string secret = folder / "secret";
  std::ofstream(secret) << "correct horse battery";
  ::chmod(secret.c_str(), 0600);
  return secret;
}

// Waits until a program has printed these words.
void await_output(const Started& run, const std::string& words) {
  const Deadline limit = Deadline::after(20s);
  while (content(run.output).find(words) == std::string::npos && !limit.passed())
    std::this_thread::sleep_for(5ms);
}

TEST(StoreCommand, MistakesAreOneLine) {
  const test::TemporaryFolder folder;
  const std::string secret = make_secret(folder), notes = folder / "notes.txt";
  std::ofstream(notes) << "# notes";
  const std::tuple<std::vector<std::string>, int, std::string> cases[] = {
      {{},
       2,
       "--listen is missing: give the address at which nodes find the store, such as HOST:29400"},
      {{"--listen", "127.0.0.1:0"},
       2,
       "--secret-file is missing: any file of 16 bytes or more with mode 600, the same on all "
       "nodes"},
      {{"--listen", "here", "--secret-file", secret},
       2,
       "--listen: expected HOST:PORT, found 'here'"},
      {{"--listen", "127.0.0.1:0", "--secret-file", secret, "--log", notes},
       1,
       notes + " is not the log of a store"}};
  for (auto [words, code, problem] : cases) {
    words.insert(words.begin(), "store");
    const Finished run = lockstep_command(words);
    EXPECT_EQ(run.status.code, code) << problem;
    EXPECT_EQ(run.error, "lockstep store: " + problem + "\n");
  }
  std::ifstream kept(notes);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), "# notes");
}

TEST(StoreCommand, ARunSurvivesItsEnd) {
  const test::TemporaryFolder folder;
  const std::string secret = make_secret(folder);
  const std::string at = "127.0.0.1:" + std::to_string(test::free_port());
  const std::vector<std::string> serve{"store", "--listen",          at, "--secret-file", secret,
                                       "--log", folder / "store.log"};
  Started store = start_lockstep(serve);
  await_output(store, "store at " + at);
  const std::string go = folder / "go", begun = folder / "begun";
  std::vector<Started> nodes;
  for (int node = 0; node < 2; ++node)
    nodes.push_back(
        start_lockstep({"run", "--nnodes", "1:2", "--store", at, "--secret-file", secret,
                        "--max-restarts", "1", "sh", "-c",
                        "touch " + begun +
                            "$RANK; [ $LOCKSTEP_ROUND = 1 ] && { echo done $RANK of $WORLD_SIZE; "
                            "exit 0; }; while [ ! -e " +
                            go + " ]; do sleep 0.05; done; exit $RANK"}));
  const Deadline limit = Deadline::after(20s);
  while (!(std::filesystem::exists(begun + "0") && std::filesystem::exists(begun + "1")) &&
         !limit.passed())
    std::this_thread::sleep_for(5ms);
  store.process.send(SIGKILL);
  static_cast<void>(finish(std::move(store)));
  Started anew = start_lockstep(serve);
  std::ofstream(go).flush();
  std::string together;
  for (Started& node : nodes) {
    const Finished run = finish(std::move(node));
    EXPECT_EQ(run.status.code, 0) << run.error;
    together += run.output;
  }
  EXPECT_NE(together.find("done 0 of 2"), std::string::npos) << together;
  EXPECT_NE(together.find("done 1 of 2"), std::string::npos) << together;
  anew.process.send(SIGTERM);
  EXPECT_EQ(finish(std::move(anew)).status, sys::ExitStatus{});
}

}  // namespace
}  // namespace lockstep::apps
