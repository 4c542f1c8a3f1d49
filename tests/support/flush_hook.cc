#include "support/flush_hook.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

namespace lockstep::test {
namespace {

using Hook = std::function<int(const std::string&)>;

std::mutex mutex;
std::shared_ptr<const Hook> current;

std::shared_ptr<const Hook> current_hook() {
  const std::lock_guard lock(mutex);
  return current;
}

std::string path_of(int file) {
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t size = ::readlink(link.c_str(), path.data(), path.size());
  return {path.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
}

}  // namespace

FlushHook::FlushHook(Hook hook) {
  const std::lock_guard lock(mutex);
  current = std::make_shared<const Hook>(std::move(hook));
}

FlushHook::~FlushHook() {
  const std::lock_guard lock(mutex);
  current.reset();
}

}  // namespace lockstep::test

// Replaces the C library's fsync().
extern "C" int fsync(int file) {
  using namespace lockstep::test;
  if (const auto hook = current_hook()) {
    const int error = (*hook)(path_of(file));
    errno = error;
    if (error != 0) return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, file));
}
