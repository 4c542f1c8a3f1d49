// A control group that limits the total memory of its processes, if this machine allows us to
// create one (version 1 or 2 of the memory controller).
#pragma once

#include "support/processes.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <unistd.h>

namespace lockstep::test {

class MemoryLimit {
 public:
  // If there are several limits, each needs its own number.
  explicit MemoryLimit(std::int64_t bytes, int number = 0) {
    for (const char* root : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      folder_ = std::filesystem::path(root) /
                ("lockstep-test-" + std::to_string(::getpid()) + "-" + std::to_string(number));
      std::error_code error;
      if (!std::filesystem::create_directory(folder_, error)) continue;
      for (const char* name : {"memory.limit_in_bytes", "memory.max"})
        if (std::filesystem::exists(folder_ / name)) there_ = write(name, std::to_string(bytes));
      if (there_) return;
      ::rmdir(folder_.c_str());
    }
  }
  ~MemoryLimit() {
    if (there_) ::rmdir(folder_.c_str());
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  // Returns false if this machine does not allow the group.
  [[nodiscard]] bool is_there() const { return there_; }
  // Moves this process into the control group.
  void join() const { ASSERT_TRUE(write("cgroup.procs", std::to_string(::getpid()))); }

 private:
  [[nodiscard]] bool write(const char* name, const std::string& text) const {
    std::ofstream file(folder_ / name);
    file << text << std::flush;
    return file.good();
  }

  std::filesystem::path folder_;
  bool there_ = false;
};

// A rank that trains in a process of its own and reports its loss. In a shared process, freed
// memory would stay in the heap.
struct LimitedRun {
  RankResult result;
  std::uint32_t loss = 0;  // the bits of the loss; 0 if there is none
};

inline LimitedRun run_alone(const std::function<float()>& train, const MemoryLimit* limit) {
  TemporaryFolder folder;
  RankProcesses process(1, [&](int) {
    if (limit != nullptr) limit->join();
    std::ofstream(folder / "loss") << std::bit_cast<std::uint32_t>(train());
  });
  LimitedRun run{.result = process.wait(std::chrono::seconds(30)).front()};
  std::ifstream(folder / "loss") >> run.loss;
  return run;
}

// Checks that `lean` trains under the limit to the loss of `plain` without a limit, and that
// `plain` is killed under the limit.
inline void expect_only_lean_fits(std::int64_t limit_bytes, const std::function<float()>& plain,
                                  const std::function<float()>& lean) {
  if (under_sanitizer) GTEST_SKIP() << "a sanitizer needs more memory";
  MemoryLimit limit(limit_bytes);
  if (!limit.is_there()) GTEST_SKIP() << "no control group with a memory limit can be made here";
  LimitedRun expected = run_alone(plain, nullptr), found = run_alone(lean, &limit);
  ASSERT_TRUE(expected.result.ok()) << expected.result;
  EXPECT_TRUE(found.result.ok()) << found.result;
  EXPECT_NE(expected.loss, 0U);
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_FALSE(run_alone(plain, &limit).result.ok());
}

}  // namespace lockstep::test
