#include "sys/file_lock.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/scope_exit.h"
#include "sys/plain_file.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep::sys {
namespace {

// Returns true if `path` still names the open file.
bool is_still_there(int file, const std::filesystem::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

constexpr std::size_t longest_signature = 300;

// Returns the text that sign() has written, which may be empty or incomplete.
std::string signature_in(int file) {
  std::string text(longest_signature + 1, '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

std::string holder_in(int file) {
  std::string text = signature_in(file);
  if (text.ends_with('\n')) text.pop_back();
  const std::size_t blank = text.find(' ');
  if (blank == std::string::npos) return "another process";
  return formatted("process {} on host {}", escaped(text.substr(0, blank), 20),
                   escaped(text.substr(blank + 1), 100));
}

// Returns true for text such as "71 host\n", or a prefix of it, because the disk may have been
// full.
bool is_signature(const std::string& text) {
  if (text.empty()) return true;
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return digits > 0 && text.size() <= longest_signature &&
         (digits == text.size() || text[digits] == ' ') &&
         std::min(text.find('\n'), text.size() - 1) == text.size() - 1;
}

// Descriptors of this process's locks; 0 marks a free entry. A forked child closes them, because
// otherwise it would hold the locks after this process has ended.
constinit std::array<std::atomic<int>, 64> open_locks{};

void close_in_child() {
  for (std::atomic<int>& place : open_locks)
    if (const int file = place.exchange(0); file != 0) ::close(file);
}

// If there are more locks than entries, the child keeps the remaining ones open.
void remember(int file) {
  [[maybe_unused]] static const int once = ::pthread_atfork(nullptr, nullptr, close_in_child);
  for (std::atomic<int>& place : open_locks)
    if (int free = 0; place.compare_exchange_strong(free, file)) return;
}

void forget(int file) {
  for (std::atomic<int>& place : open_locks)
    if (int kept = file; place.compare_exchange_strong(kept, 0)) return;
}

}  // namespace

FileLock::FileLock(std::filesystem::path path) : path_(std::move(path)) {
  ScopeExit close([&] { this->close(); });
  do {
    this->close();
    // Non-blocking, because opening a pipe of that name would otherwise block.
    constexpr int how = O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
    file_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | how, 0666));
    const int error = errno;
    // A file that a killed process of another user left: it can be locked without write access.
    if (!file_ && error == EACCES) file_.reset(::open(path_.c_str(), O_RDONLY | how));
    check_input(file_ || error != ELOOP, "{}: expected a lock file, found a link", path_.string());
    if (!file_) throw SystemError("opening the lock " + path_.string(), error);
    remember(file_.get());
  } while (!try_once());
  close.cancel();
}

void FileLock::close() {
  if (!file_) return;
  forget(file_.get());
  file_.reset();
}

// Throws if the file is not a lock, so that a user's file is neither truncated nor removed.
void FileLock::check_is_lock() const {
  struct stat status {};
  const bool is_file = ::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode);
  check_input(is_file && is_signature(signature_in(file_.get())),
              "{}: expected a lock file, found {}: move it away", path_.string(),
              is_file ? "a file of another kind" : "something that is not a regular file");
}

bool FileLock::try_once() {
  int result = 0;
  while ((result = ::flock(file_.get(), LOCK_EX | LOCK_NB)) != 0 && errno == EINTR) {
  }
  const int error = result == 0 ? 0 : errno;
  if (error == EWOULDBLOCK) {
    about_ = holder_in(file_.get());
    return true;
  }
  check_is_lock();
  if (error != 0) {
    state_ = State::impossible;
    about_ = std::strerror(error);
    return true;
  }
  if (!is_still_there(file_.get(), path_)) return false;
  state_ = State::held;
  reaches_everybody_ = !may_be_of_several_hosts(file_.get());
  sign();
  return true;
}

void FileLock::sign() const {
  const std::string text = formatted("{} {}\n", ::getpid(), host_name());
  // On a full disk the lock works without the signature of its holder.
  if (::ftruncate(file_.get(), 0) != 0) return;
  [[maybe_unused]] const ssize_t written = ::pwrite(file_.get(), text.data(), text.size(), 0);
}

FileLock::~FileLock() {
  if (process_.is_copy_of_parent()) {
    (void)file_.release();  // already closed when the child began
    return;
  }
  if (state_ != State::busy && is_still_there(file_.get(), path_)) ::unlink(path_.c_str());
  close();
}

}  // namespace lockstep::sys
