// A small agent for tests. It forks the workers of an elastic run, ends their rounds and begins new
// ones, with the keys of src/elastic/round_client.h in a store in a folder.
#pragma once

#include <lockstep/store/file_store.h>

#include "support/temporary_folder.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace lockstep::test {

class SmallAgent {
 public:
  // Runs in a worker and returns its exit code. Failed EXPECTs make it 1.
  using Body = std::function<int()>;

  struct Options {
    std::string backend = "shm";
    std::vector<std::pair<std::string, std::string>> environment = {};
  };

  SmallAgent(Body body, Options options);
  explicit SmallAgent(Body body) : SmallAgent(std::move(body), Options{}) {}
  // Kills the remaining workers.
  ~SmallAgent();
  SmallAgent(const SmallAgent&) = delete;
  SmallAgent& operator=(const SmallAgent&) = delete;

  // Begins the first or the next round. First ends the current round with the reason `why`, and
  // waits for the live workers. Survivors keep their ranks if possible.
  void begin_round(int ranks, const std::string& why = "a worker was lost");
  // Kills a worker, blocks until it has ended, and forgets it.
  void kill(int rank, int signal = 9);
  // Blocks until all workers have ended, and returns their exit codes by rank, or -SIGNAL for a
  // worker that a signal ended.
  std::vector<int> wait();

  [[nodiscard]] std::int64_t round() const { return round_; }
  [[nodiscard]] pid_t pid(int rank) const {
    return workers_.at(static_cast<std::size_t>(rank)).pid;
  }
  [[nodiscard]] FileStore& store() { return *store_; }
  // A folder for the workers' output.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }
  // The folder of commits.
  [[nodiscard]] std::filesystem::path commits() const { return folder_.path() / "commits"; }

 private:
  struct Worker {
    std::string name;
    pid_t pid = -1;
  };

  void end_round(const std::string& why);
  void start(std::size_t rank, std::size_t ranks);
  [[noreturn]] void be_worker(std::size_t rank, std::size_t ranks);

  TemporaryFolder folder_;
  const Body body_;
  const Options options_;
  std::unique_ptr<FileStore> store_;
  std::int64_t round_ = -1;
  int started_ = 0;
  std::vector<Worker> workers_;  // by rank; an entry without a process is to be started
};

}  // namespace lockstep::test
