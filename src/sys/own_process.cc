#include "sys/own_process.h"

#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace lockstep::sys {
namespace {

using Number = std::atomic<pid_t>;

constinit Number unknown{0};

// Returns a page that the kernel zeroes in forked children, or `unknown` if the kernel has no such
// pages.
Number* make_page() noexcept {
  auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return &unknown;
  if (::madvise(page, bytes, MADV_WIPEONFORK) == 0) return new (page) Number(0);
  ::munmap(page, bytes);
  return &unknown;
}

}  // namespace

namespace internal {

constinit std::atomic<Number*> known_process{&unknown};

pid_t find_process() noexcept {
  static Number* const page = make_page();
  const pid_t process = ::getpid();
  if (page == &unknown) return process;
  page->store(process, std::memory_order_relaxed);
  known_process.store(page, std::memory_order_release);
  return process;
}

}  // namespace internal

}  // namespace lockstep::sys
