// Prefetcher: makes numbered items ahead of the one who takes them, in worker threads, and hands
// them out in order.
//
// Item n is made by make(n) alone, so what comes out does not depend on how many workers there are
// or which is faster.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace lockstep::data {

// One thread takes. No worker outlives the object: the destructor waits for the items that are
// being made and drops them.
class Prefetcher {
 public:
  using Item = std::shared_ptr<void>;  // never null
  using Make = std::function<Item(std::int64_t number)>;

  // Items begin ... end - 1. Each of `workers` runs in a thread of its own, so they may have state
  // but share none; without workers, take() itself calls make. At most `ahead` items (at least one)
  // are made or being made and not yet taken.
  Prefetcher(std::int64_t begin, std::int64_t end, std::vector<Make> workers, std::int64_t ahead);
  Prefetcher(std::int64_t begin, std::int64_t end, Make make);

  // The next item; null behind the last. Blocks until it is made. What its making threw is thrown
  // here instead, now and at each later call.
  [[nodiscard]] Item take();

 private:
  // What became of one item.
  struct Slot {
    Item item;
    std::exception_ptr error;
    [[nodiscard]] bool ready() const { return item || error; }
  };

  void work(const std::stop_token& stop, const Make& make);
  [[nodiscard]] Item take_here();
  [[nodiscard]] Slot& slot(std::int64_t number) {
    return slots_[static_cast<std::size_t>(number) % slots_.size()];
  }

  const std::int64_t end_;
  const Make make_;  // without workers

  // Guarded by mutex_: taken_ <= claimed_ <= min(end_, taken_ + slots_.size()). Items below taken_
  // are gone, those below claimed_ are made or being made by the worker that claimed them, and
  // slot(n) is item n's for taken_ <= n < claimed_.
  std::mutex mutex_;
  std::condition_variable_any room_;
  std::condition_variable made_;
  std::int64_t taken_;
  std::int64_t claimed_;
  std::vector<Slot> slots_;

  std::vector<std::jthread> threads_;  // last: stopped and joined before anything they use goes
};

}  // namespace lockstep::data
