// FileStore: a store in a folder that all ranks can access, such as one on a network filesystem. A
// FileStore needs no server and no port. It is slow (a millisecond or more per call) and meant for
// a handful of keys.
//
// The folder holds one file per key and a lock file; a key's file only changes by rename. If a rank
// is killed at any point, every key is still complete and the lock is free. Values of earlier runs
// remain: give each run an empty folder. Every user with write access to the folder can change the
// store.
#pragma once

#include <chrono>
#include <filesystem>

#include <lockstep/store/store.h>

#pragma GCC visibility push(default)

namespace lockstep {

struct FileStoreOptions {
  // How long a call waits for the folder's lock before it throws Timeout. The lock is held for
  // microseconds, unless the process that holds it is stopped.
  Duration lock_timeout = std::chrono::seconds(60);
};

class FileStore : public Store {
 public:
  // Creates the folder if it does not exist. get() and wait() poll for keys at intervals of at most
  // 50 ms.
  explicit FileStore(std::filesystem::path folder, FileStoreOptions options = {});

  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> try_get(std::string_view key) override;
  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool erase(std::string_view key) override;
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix) override;

 private:
  class Lock;

  [[nodiscard]] std::filesystem::path file_of(std::string_view key) const;
  void replace(const std::filesystem::path& file, std::string_view key, std::string_view value);

  std::filesystem::path folder_;
  FileStoreOptions options_;
};

}  // namespace lockstep

#pragma GCC visibility pop
