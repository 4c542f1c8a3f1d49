#include <lockstep/store/file_store.h>

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "store/table.h"
#include "sys/file_descriptor.h"
#include "sys/files.h"
#include "sys/signals.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <sodium.h>

// A file is "KEY_BYTES KEY VALUE": the length of the key in decimal, a space, the key, then the
// value up to the end. The file's name is a hash of the key, because keys may be longer than file
// names and may contain any bytes.
namespace lockstep {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::string_view suffix = ".value";

struct Entry {
  std::string key;
  std::string value;
};

Entry parse_entry(const fs::path& file, const std::string& content) {
  std::size_t space = content.find(' ');
  auto length = parse_integer(std::string_view(content).substr(0, space));
  bool whole = space != std::string::npos && length && *length >= 0 &&
               static_cast<std::size_t>(*length) <= content.size() - space - 1;
  check_input(whole, "store: {} is not a file of a store", file.string());
  auto key_bytes = static_cast<std::size_t>(*length);
  return {content.substr(space + 1, key_bytes), content.substr(space + 1 + key_bytes)};
}

std::optional<Entry> read_entry(const fs::path& file) {
  try {
    return parse_entry(file, sys::read_file(file));
  } catch (const SystemError& error) {
    if (error.error_number() == ENOENT || error.error_number() == ESTALE) return std::nullopt;
    throw;
  }
}

// Paces repeated polls: short pauses at first, growing to 50 ms.
class Backoff {
 public:
  void pause(Deadline deadline) {
    std::this_thread::sleep_for(std::min<Duration>(pause_, deadline.left()));
    pause_ = std::min<Duration>(2 * pause_, 50ms);
  }

 private:
  Duration pause_ = 200us;
};

}  // namespace

// Held during each change: only one process or thread writes at a time. The kernel releases the
// lock when its holder ends.
class FileStore::Lock {
 public:
  Lock(const fs::path& folder, Duration timeout)
      : file_(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (!file_) throw SystemError("opening the lock of store " + folder.string(), errno);
    Deadline deadline = Deadline::after(timeout);
    for (Backoff backoff; ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0; backoff.pause(deadline)) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        throw SystemError("locking store " + folder.string(), errno);
      }
      if (deadline.passed()) {
        throw Timeout(formatted("store {}: another process has held its lock for {}",
                                folder.string(), format_duration(timeout)));
      }
    }
  }
  // Unlocks explicitly, because a child that was forked meanwhile may have a copy.
  ~Lock() { ::flock(file_.get(), LOCK_UN); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  sys::PrivateDescriptor file_;
};

FileStore::FileStore(fs::path folder, FileStoreOptions options)
    : folder_(std::move(folder)), options_(options) {
  sys::make_directories(folder_);
  Lock lock(folder_, options_.lock_timeout);  // detects a folder that is not writable
}

fs::path FileStore::file_of(std::string_view key) const {
  store::check_key(key);
  std::array<unsigned char, 20> hash{};
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(key.data()),
                     key.size(), nullptr, 0);
  std::array<char, 2 * hash.size() + 1> name{};
  sodium_bin2hex(name.data(), name.size(), hash.data(), hash.size());
  return folder_ / (std::string(name.data()) + std::string(suffix));
}

// Call with the lock held. The temporary name is always the same, so a killed writer leaves at most
// one file, which the next writer overwrites. Does not flush to disk: the store must survive a
// crash of a peer, not of the host.
void FileStore::replace(const fs::path& file, std::string_view key, std::string_view value) {
  fs::path temporary = folder_ / "writing";
  {
    const sys::ScopedSignalBlock quiet(SIGXFSZ);
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream << key.size() << ' ' << key << value;
    stream.close();
    if (!stream) throw SystemError("writing " + temporary.string(), errno);
  }
  if (::rename(temporary.c_str(), file.c_str()) != 0) {
    throw SystemError("renaming " + temporary.string(), errno);
  }
}

void FileStore::set(std::string_view key, std::string_view value) {
  fs::path file = file_of(key);
  store::check_value(key, value);
  Lock lock(folder_, options_.lock_timeout);
  replace(file, key, value);
}

std::optional<std::string> FileStore::try_get(std::string_view key) {
  auto entry = read_entry(file_of(key));
  return entry ? std::optional(std::move(entry->value)) : std::nullopt;
}

std::string FileStore::get(std::string_view key, Deadline deadline) {
  auto start = Clock::now();
  for (Backoff backoff;; backoff.pause(deadline)) {
    if (auto value = try_get(key)) return *std::move(value);
    if (!deadline.passed()) continue;
    std::string name(key);
    throw store::missing_keys(std::span(&name, 1), Clock::now() - start);
  }
}

void FileStore::wait(std::span<const std::string> keys, Deadline deadline) {
  auto start = Clock::now();
  for (Backoff backoff;; backoff.pause(deadline)) {
    std::vector<std::string> missing;
    for (const std::string& key : keys) {
      if (std::error_code ignored; !fs::exists(file_of(key), ignored)) missing.push_back(key);
    }
    if (missing.empty()) return;
    if (deadline.passed()) throw store::missing_keys(missing, Clock::now() - start);
  }
}

std::int64_t FileStore::add(std::string_view key, std::int64_t delta) {
  fs::path file = file_of(key);
  Lock lock(folder_, options_.lock_timeout);
  auto entry = read_entry(file);
  std::int64_t sum = store::add_to_number(key, entry ? entry->value : "0", delta);
  replace(file, key, std::to_string(sum));
  return sum;
}

std::string FileStore::compare_set(std::string_view key, std::string_view expected,
                                   std::string_view desired) {
  fs::path file = file_of(key);
  store::check_value(key, desired);
  Lock lock(folder_, options_.lock_timeout);
  auto entry = read_entry(file);
  std::string value = entry ? std::move(entry->value) : "";
  if (value != expected) return value;
  replace(file, key, desired);
  return std::string(desired);
}

bool FileStore::erase(std::string_view key) {
  fs::path file = file_of(key);
  Lock lock(folder_, options_.lock_timeout);
  if (::unlink(file.c_str()) == 0) return true;
  if (errno != ENOENT) throw SystemError("erasing " + file.string(), errno);
  return false;
}

std::vector<std::string> FileStore::keys(std::string_view prefix) {
  std::vector<std::string> found;
  for (const fs::path& file : sys::entries_in(folder_)) {
    if (file.extension() != suffix) continue;
    auto entry = read_entry(file);
    if (entry && entry->key.starts_with(prefix)) found.push_back(std::move(entry->key));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace lockstep
