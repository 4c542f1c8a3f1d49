// FileStore: a store in a folder that all ranks see, such as one on a network filesystem. It needs
// no server and no port; it is slow (a millisecond or more a call) and meant for a handful of keys.
//
// The folder holds one file a key, which only ever changes by rename, and a lock file. A rank that
// is killed at any point leaves every key whole and the lock free. Values of earlier runs stay:
// give each run a fresh folder. Every user that can write the folder can change the store.
#pragma once

#include <chrono>
#include <filesystem>

#include <lockstep/store/store.h>

#pragma GCC visibility push(default)

namespace lockstep {

struct FileStoreOptions {
  // How long a call waits for the folder's lock (held for microseconds, unless its holder is
  // stopped) before it throws Timeout.
  Duration lock_timeout = std::chrono::seconds(60);
};

class FileStore : public Store {
 public:
  // Makes the folder where it is missing. Waits look for keys again and again, at most 50 ms apart.
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
