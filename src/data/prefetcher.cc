#include <lockstep/data/prefetcher.h>

#include "base/mutex.h"
#include "sys/own_process.h"
#include "sys/signals.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <stop_token>
#include <thread>
#include <utility>

namespace lockstep::data {

namespace {

// Makes LibTorch operations in the calling thread run on this thread only; the number of threads in
// other threads does not change.
//
// Does not call at::set_num_threads(), because its number is also the default of every later
// thread. OpenMP's own setting belongs to the calling thread, but a thread's first
// at::get_num_threads() overwrites it, hence the order.
void use_single_thread() {
  if (at::get_num_threads() == 1) return;
  using SetNumThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetNumThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
    set(1);
}

}  // namespace

// The items and the threads that make them.
class Prefetcher::Line {
 public:
  Line(std::int64_t begin, std::int64_t end, std::vector<Make> workers, std::int64_t ahead)
      : end_(end),
        taken_(begin),
        claimed_(begin),
        slots_(static_cast<std::size_t>(std::max<std::int64_t>(1, ahead))) {
    threads_.reserve(workers.size());
    const sys::BlockedSignals blocked;  // the workers inherit the mask
    for (Make& make : workers) {
      threads_.emplace_back(
          [this, make = std::move(make)](const std::stop_token& stop) { work(stop, make); });
    }
  }

  Line(std::int64_t begin, std::int64_t end, Make make)
      : end_(end), make_(std::move(make)), taken_(begin), claimed_(begin) {}

  // Stops all workers before the first is joined: this takes as long as the slowest of them.
  ~Line() { request_stop(); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void request_stop() noexcept {
    if (process_.is_copy_of_parent()) return;  // a forked child has no workers
    for (std::jthread& thread : threads_) thread.request_stop();
  }

  [[nodiscard]] Prefetcher::Item take() {
    if (make_) return take_here();
    Lock lock(mutex_);
    if (taken_ == end_) return nullptr;
    made_.wait(lock.native(), [&]() LOCKSTEP_REQUIRES(mutex_) { return slot(taken_).ready(); });
    if (slot(taken_).error) std::rethrow_exception(slot(taken_).error);
    Item item = std::exchange(slot(taken_), Slot()).item;
    ++taken_;
    room_.notify_one();
    return item;
  }

 private:
  // The result of one item.
  struct Slot {
    Item item;
    std::exception_ptr error;
    [[nodiscard]] bool ready() const { return item || error; }
  };

  void work(const std::stop_token& stop, const Make& make) {
    use_single_thread();
    Lock lock(mutex_);
    auto has_room = [&]() LOCKSTEP_REQUIRES(mutex_) {
      return claimed_ < end_ && claimed_ - taken_ < static_cast<std::int64_t>(slots_.size());
    };
    while (room_.wait(lock.native(), stop, has_room) && !stop.stop_requested()) {
      const std::int64_t number = claimed_++;
      lock.unlock();
      Slot result;
      try {
        result.item = make(number);
      } catch (...) {
        result.error = std::current_exception();
      }
      lock.lock();
      slot(number) = std::move(result);
      made_.notify_one();
    }
  }

  [[nodiscard]] Prefetcher::Item take_here() {
    Lock lock(mutex_);  // uncontended: there are no workers
    if (taken_ == end_) return nullptr;
    Item item = make_(taken_);
    ++taken_;
    return item;
  }

  [[nodiscard]] Slot& slot(std::int64_t number) LOCKSTEP_REQUIRES(mutex_) {
    return slots_[static_cast<std::size_t>(number) % slots_.size()];
  }

  const sys::ForkAware process_;
  const std::int64_t end_;
  const Make make_;  // only without workers

  // Invariant: taken_ <= claimed_ <= min(end_, taken_ + slots_.size()). Items below taken_ were
  // returned; items below claimed_ are finished, or in progress in the worker that claimed them;
  // slot(n) belongs to item n for taken_ <= n < claimed_.
  Mutex mutex_;
  std::condition_variable_any room_;
  std::condition_variable made_;
  std::int64_t taken_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t claimed_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Slot> slots_ LOCKSTEP_GUARDED_BY(mutex_);

  std::vector<std::jthread> threads_;  // last member: joined before the others are destroyed
};

Prefetcher::Prefetcher(std::int64_t begin, std::int64_t end, std::vector<Make> workers,
                       std::int64_t ahead)
    : line_(sys::make_shared_of_process<Line>(begin, end, std::move(workers), ahead)) {}

Prefetcher::Prefetcher(std::int64_t begin, std::int64_t end, Make make)
    : line_(sys::make_shared_of_process<Line>(begin, end, std::move(make))) {}

Prefetcher::~Prefetcher() = default;

void Prefetcher::request_stop() noexcept { line_->request_stop(); }

Prefetcher::Item Prefetcher::take() { return line_->take(); }

}  // namespace lockstep::data
