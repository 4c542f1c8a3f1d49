#include "sys/file_lock.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "sys/plain_file.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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

}  // namespace

FileLock::FileLock(std::filesystem::path path) : path_(std::move(path)) {
  do {
    // Non-blocking, because opening a pipe of that name would otherwise block.
    constexpr int how = O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
    FileDescriptor file(::open(path_.c_str(), O_RDWR | O_CREAT | how, 0666));
    const int error = errno;
    // A file that a killed process of another user left: it can be locked without write access.
    if (!file && error == EACCES) file.reset(::open(path_.c_str(), O_RDONLY | how));
    check_input(file || error != ELOOP, "{}: expected a lock file, found a link", path_.string());
    if (!file) throw SystemError("opening the lock " + path_.string(), error);
    file_ = PrivateDescriptor(std::move(file));
  } while (!try_once());
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
  if (!file_) return;  // a copy in a forked child
  if (state_ != State::busy && is_still_there(file_.get(), path_)) ::unlink(path_.c_str());
}

}  // namespace lockstep::sys
