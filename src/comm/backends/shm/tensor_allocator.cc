#include "comm/backends/shm/tensor_allocator.h"

#include "sys/heap.h"
#include "sys/own_process.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string_view>
#include <utility>

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

namespace lockstep::shm {

namespace {

// An arena that serves tensors or has served tensors. Entries are never destroyed, so that reading
// them needs no lock; the entry of a destroyed arena is reused. A lookup ignores an entry that is
// changing, which is correct: the entry of an address that is in use does not change.
struct Serving {
  std::atomic<std::byte*> begin{nullptr};  // null: no arena
  std::atomic<std::size_t> bytes{0};
  std::atomic<bool> is_closed{false};  // in a forked child: the pages are taken
  std::shared_ptr<Arena> arena;        // the mutex guards the members below
  std::size_t most = 0;                // bytes for tensors
  ArenaTensors::Pages pages = ArenaTensors::Pages::when_touched;
  std::size_t used = 0;  // by tensors
  bool has_ended = false;
  Serving* next = nullptr;

  [[nodiscard]] bool contains(const std::byte* data) const {
    auto* first = begin.load(std::memory_order_acquire);
    if (first == nullptr) return false;
    const std::size_t size = bytes.load(std::memory_order_acquire);
    const bool is_unchanged = begin.load(std::memory_order_acquire) == first;
    return is_unchanged && data >= first && data < first + size;
  }
};

class TensorAllocator final : public c10::Allocator {
 public:
  // LibTorch's own allocator has priority 0.
  TensorAllocator() : under_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, 1);
    sys::also_return_freed_memory([] { of_process().give_back_pages(); });
    installed() = this;
    pthread_atfork(nullptr, nullptr, [] { installed().load()->close_in_child(); });
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes >= ArenaTensors::least_bytes && !process_.is_copy_of_parent()) {
      if (auto* block = from_arena(bytes))
        return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
    }
    return under_->allocate(bytes);
  }
  // For memory of both allocators.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  [[nodiscard]] bool serves_here() const { return !process_.is_copy_of_parent(); }

  // Returns false if another arena serves tensors.
  bool begin(std::shared_ptr<Arena> arena, std::size_t most, ArenaTensors::Pages pages) {
    // In a forked child no arena serves tensors, and the mutex may have been locked at the fork.
    if (process_.is_copy_of_parent()) return false;
    std::lock_guard lock(mutex_);
    if (current_ != nullptr) return false;
    current_ = free_entry();
    current_->arena = std::move(arena);
    current_->arena->keep_from_children();  // before a fork handler can find it
    current_->most = most;
    current_->pages = pages;
    current_->has_ended = false;
    current_->bytes.store(current_->arena->bytes(), std::memory_order_release);
    current_->begin.store(current_->arena->data(), std::memory_order_release);
    return true;
  }

  void end() {
    if (process_.is_copy_of_parent()) return;
    std::shared_ptr<Arena> gone;  // destroyed after unlocking
    std::lock_guard lock(mutex_);
    auto* ended = std::exchange(current_, nullptr);
    ended->has_ended = true;
    gone = take_if_unused(*ended);
  }

  static TensorAllocator& of_process() {
    static TensorAllocator& allocator = *std::make_unique<TensorAllocator>().release();
    return allocator;
  }

 private:
  std::byte* from_arena(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    if (current_ == nullptr || bytes > current_->most - current_->used) return nullptr;
    auto block = current_->arena->try_allocate(bytes);
    if (block.empty()) return nullptr;
    if (current_->pages == ArenaTensors::Pages::at_once && !current_->arena->reserve(block)) {
      current_->arena->free(block.data());
      return nullptr;
    }
    current_->used += block.size();
    c10::profiledCPUMemoryReporter().New(block.data(), bytes);
    return block.data();
  }

  static void release(void* memory) { of_process().free(static_cast<std::byte*>(memory)); }

  void free(std::byte* memory) {
    if (auto* entry = entry_at(memory)) return free_in(*entry, memory);
    under_->raw_deleter()(memory);
  }

  void free_in(Serving& entry, std::byte* block) {
    if (process_.is_copy_of_parent()) return;
    std::shared_ptr<Arena> gone;
    std::lock_guard lock(mutex_);
    c10::profiledCPUMemoryReporter().Delete(block);
    entry.used -= entry.arena->free(block);
    gone = take_if_unused(entry);
  }

  void give_back_pages() {
    if (process_.is_copy_of_parent()) return;
    std::shared_ptr<Arena> arena;
    {
      std::lock_guard lock(mutex_);
      if (current_ != nullptr) arena = current_->arena;
    }
    if (arena) arena->give_back_pages();
  }

  [[nodiscard]] Serving* entry_at(const std::byte* address) const {
    auto* entry = first_.load(std::memory_order_acquire);
    while (entry != nullptr && !entry->contains(address)) entry = entry->next;
    return entry;
  }

  [[nodiscard]] static std::shared_ptr<Arena> take_if_unused(Serving& entry) {
    if (!entry.has_ended || entry.used > 0) return nullptr;
    entry.begin.store(nullptr, std::memory_order_release);
    return std::move(entry.arena);
  }

  [[nodiscard]] Serving* free_entry() {
    for (auto* entry = first_.load(std::memory_order_relaxed); entry; entry = entry->next) {
      if (entry->arena == nullptr) return entry;
    }
    auto* entry = std::make_unique<Serving>().release();
    entry->next = first_.load(std::memory_order_relaxed);
    first_.store(entry, std::memory_order_release);
    return entry;
  }

  // Forked children do not have the arenas (sys::SharedMemory::keep_from_children()): a child would
  // share one with its parent, and each would see the other's writes. In a child, no other mapping
  // takes these addresses, and touching them ends the child by SIGSEGV, as touching memory of an
  // RDMA device does (ibv_fork_init). The child prints the reason to standard error unless the
  // program handles SIGSEGV itself. Code that runs in a child takes no locks and allocates no
  // memory.
  void close_in_child() {
    bool any = false;
    for (auto* entry = first_.load(std::memory_order_acquire); entry; entry = entry->next) {
      std::byte* begin = entry->begin.load(std::memory_order_acquire);
      // A child of a child inherits the closed pages.
      if (begin == nullptr || entry->is_closed.exchange(true)) continue;
      close_pages(begin, entry->bytes.load(std::memory_order_relaxed));
      any = true;
    }
    if (any) explain_faults();
  }

  // Skips pages that an earlier fork handler has mapped there.
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

  static void explain_faults() {
    struct sigaction present {};
    if (sigaction(SIGSEGV, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) return;
    struct sigaction explaining {};
    explaining.sa_sigaction = explain;
    explaining.sa_flags = SA_SIGINFO | SA_RESETHAND;  // the access is repeated and ends the child
    sigaction(SIGSEGV, &explaining, nullptr);
  }

  static void explain(int, siginfo_t* fault, void*) {
    if (!installed().load()->entry_at(static_cast<std::byte*>(fault->si_addr))) return;
    constexpr std::string_view text =
        "lockstep: a forked child touched a tensor of its parent, which lies in memory that ranks "
        "share and is not there in children. Make it before init(), or pass it on by other means; "
        "with LOCKSTEP_ARENA_TENSORS=off children have copies of all tensors.\n";
    [[maybe_unused]] auto written = ::write(STDERR_FILENO, text.data(), text.size());
  }

  // For functions that must not construct the object.
  static std::atomic<TensorAllocator*>& installed() {
    static constinit std::atomic<TensorAllocator*> allocator{nullptr};
    return allocator;
  }

  const sys::ForkAware process_;
  c10::Allocator* const under_;
  std::atomic<Serving*> first_{nullptr};
  std::mutex mutex_;
  Serving* current_ = nullptr;
};

}  // namespace

ArenaTensors::ArenaTensors(const std::shared_ptr<Arena>& arena, std::size_t most_bytes, Pages pages)
    : serves_(TensorAllocator::of_process().begin(arena, most_bytes, pages)) {}

bool ArenaTensors::are_possible() { return TensorAllocator::of_process().serves_here(); }

ArenaTensors::~ArenaTensors() {
  if (serves_) TensorAllocator::of_process().end();
}

}  // namespace lockstep::shm
