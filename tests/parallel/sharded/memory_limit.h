// A control group whose processes together get so much memory and no more, where this machine lets
// us make one (version 1 or 2 of the memory controller).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

namespace lockstep::test {

class MemoryLimit {
 public:
  explicit MemoryLimit(std::int64_t bytes) {
    for (const char* root : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      folder_ = std::filesystem::path(root) / ("lockstep-test-" + std::to_string(::getpid()));
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

  // False: this machine has no such thing for us.
  [[nodiscard]] bool is_there() const { return there_; }
  // From here on this process takes part.
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

}  // namespace lockstep::test
