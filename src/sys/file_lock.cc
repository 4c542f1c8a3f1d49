#include "sys/file_lock.h"

#include "base/format.h"
#include "base/visible.h"
#include "sys/plain_file.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep::sys {
namespace {

// Whether the name still leads to the file that is open.
bool is_still_there(int file, const std::filesystem::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// What sign() has written, or is about to write.
std::string holder_in(int file) {
  std::string text(300, '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  if (text.ends_with('\n')) text.pop_back();
  const std::size_t blank = text.find(' ');
  if (blank == std::string::npos) return "another process";
  return formatted("process {} on host {}", visible(text.substr(0, blank), 20),
                   visible(text.substr(blank + 1), 100));
}

}  // namespace

FileLock::FileLock(std::filesystem::path path) : path_(std::move(path)) {
  do {
    // Non-blocking: a pipe of that name must not hold us up.
    file_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
    if (!file_) throw SystemError("opening the lock " + path_.string(), errno);
  } while (!try_once());
}

bool FileLock::try_once() {
  int result = 0;
  while ((result = ::flock(file_.get(), LOCK_EX | LOCK_NB)) != 0 && errno == EINTR) {
  }
  if (result != 0 && errno == EWOULDBLOCK) {
    about_ = holder_in(file_.get());
    return true;
  }
  if (result != 0) {
    state_ = State::impossible;
    about_ = std::strerror(errno);
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
  // On a full disk the lock holds as well without its holder's number.
  if (::ftruncate(file_.get(), 0) != 0) return;
  [[maybe_unused]] const ssize_t written = ::pwrite(file_.get(), text.data(), text.size(), 0);
}

FileLock::~FileLock() {
  if (state_ != State::busy && is_still_there(file_.get(), path_)) ::unlink(path_.c_str());
}

}  // namespace lockstep::sys
