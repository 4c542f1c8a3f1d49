#include "comm/engines/shm/absent_in_children.h"

#include <cerrno>
#include <memory>
#include <string_view>

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

namespace lockstep::shm {

// The ranges of the process. Code that runs in a child takes no locks and allocates no memory.
class AbsentRanges {
 public:
  using Entry = AbsentInChildren::Entry;

  static AbsentRanges& of_process() {
    static AbsentRanges& ranges = *std::make_unique<AbsentRanges>().release();
    return ranges;
  }

  AbsentRanges() {
    installed() = this;
    pthread_atfork(nullptr, nullptr, [] { installed().load()->close_in_child(); });
  }

  Entry* add(std::byte* begin, std::size_t bytes) {
    Entry* entry = free_entry();
    entry->bytes.store(bytes, std::memory_order_release);
    entry->begin.store(begin, std::memory_order_release);
    return entry;
  }

 private:
  // For functions that must not wait until the object is made.
  static std::atomic<AbsentRanges*>& installed() {
    static constinit std::atomic<AbsentRanges*> ranges{nullptr};
    return ranges;
  }

  [[nodiscard]] Entry* free_entry() {
    for (Entry* entry = first_.load(std::memory_order_acquire); entry; entry = entry->next)
      if (!entry->is_taken.exchange(true, std::memory_order_acq_rel)) return entry;
    Entry* entry = std::make_unique<Entry>().release();
    entry->is_taken = true;
    entry->next = first_.load(std::memory_order_relaxed);
    while (!first_.compare_exchange_weak(entry->next, entry, std::memory_order_acq_rel)) {
    }
    return entry;
  }

  // Leaves out pages that an earlier fork handler has mapped there for itself.
  static void close_pages(std::byte* begin, std::size_t bytes) {
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    constexpr std::size_t page = 4096;
    void* closed = mmap(begin, bytes, PROT_NONE, flags, -1, 0);
    if (closed == begin) return;
    if (closed != MAP_FAILED) munmap(closed, bytes);  // a kernel without MAP_FIXED_NOREPLACE
    if (closed != MAP_FAILED || errno != EEXIST || bytes <= page) return;
    const std::size_t half = bytes / page / 2 * page;
    if (half == 0) return;
    close_pages(begin, half);
    close_pages(begin + half, bytes - half);
  }

  void close_in_child() {
    bool any = false;
    for (Entry* entry = first_.load(std::memory_order_acquire); entry; entry = entry->next) {
      std::byte* begin = entry->begin.load(std::memory_order_acquire);
      if (begin == nullptr) continue;
      close_pages(begin, entry->bytes.load(std::memory_order_relaxed));
      any = true;
    }
    if (any) explain_faults();
  }

  static void explain_faults() {
    struct sigaction present {};
    if (sigaction(SIGSEGV, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) return;
    struct sigaction explaining {};
    explaining.sa_sigaction = explain;
    explaining.sa_flags = SA_SIGINFO | SA_RESETHAND;  // the access is repeated, and ends the child
    sigaction(SIGSEGV, &explaining, nullptr);
  }

  [[nodiscard]] bool has(const std::byte* address) const {
    for (Entry* entry = first_.load(std::memory_order_acquire); entry; entry = entry->next) {
      const std::byte* begin = entry->begin.load(std::memory_order_acquire);
      if (begin != nullptr && address >= begin && address < begin + entry->bytes.load())
        return true;
    }
    return false;
  }

  static void explain(int, siginfo_t* fault, void*) {
    if (!installed().load()->has(static_cast<std::byte*>(fault->si_addr))) return;
    constexpr std::string_view text =
        "lockstep: a forked child touched a tensor of its parent, which lies in memory that ranks "
        "share and is not there in children. Make it before init(), or pass it on by other means; "
        "with LOCKSTEP_ARENA_TENSORS=off children have copies of all tensors.\n";
    [[maybe_unused]] auto written = ::write(STDERR_FILENO, text.data(), text.size());
  }

  std::atomic<Entry*> first_{nullptr};
};

AbsentInChildren::AbsentInChildren(std::byte* begin, std::size_t bytes)
    : entry_(AbsentRanges::of_process().add(begin, bytes)) {}

AbsentInChildren::~AbsentInChildren() {
  if (process_.is_copy_of_parent()) return;
  entry_->begin.store(nullptr, std::memory_order_release);
  entry_->is_taken.store(false, std::memory_order_release);
}

}  // namespace lockstep::shm
