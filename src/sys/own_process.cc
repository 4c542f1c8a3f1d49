#include "sys/own_process.h"

#include <atomic>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace lockstep::sys {
namespace {

using Number = std::atomic<pid_t>;

// A page that a forked child finds zeroed; null where the kernel has none.
Number* make_page() noexcept {
  auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, bytes, MADV_WIPEONFORK) == 0) return new (page) Number(0);
  ::munmap(page, bytes);
  return nullptr;
}

}  // namespace

pid_t own_process() noexcept {
  static Number* const known = make_page();
  if (known == nullptr) return ::getpid();
  pid_t process = known->load(std::memory_order_relaxed);
  if (process == 0) {
    process = ::getpid();
    known->store(process, std::memory_order_relaxed);
  }
  return process;
}

}  // namespace lockstep::sys
