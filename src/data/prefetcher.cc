#include <lockstep/data/prefetcher.h>

#include "data/single_thread.h"
#include "sys/blocked_signals.h"

#include <algorithm>
#include <utility>

namespace lockstep::data {

Prefetcher::Prefetcher(std::int64_t begin, std::int64_t end, std::vector<Make> workers,
                       std::int64_t ahead)
    : end_(end),
      taken_(begin),
      claimed_(begin),
      slots_(static_cast<std::size_t>(std::max<std::int64_t>(1, ahead))) {
  threads_.reserve(workers.size());
  const sys::BlockedSignals blocked;  // in the workers
  for (Make& make : workers) {
    threads_.emplace_back(
        [this, make = std::move(make)](const std::stop_token& stop) { work(stop, make); });
  }
}

Prefetcher::Prefetcher(std::int64_t begin, std::int64_t end, Make make)
    : end_(end), make_(std::move(make)), taken_(begin), claimed_(begin) {}

void Prefetcher::work(const std::stop_token& stop, const Make& make) {
  use_single_thread();
  std::unique_lock lock(mutex_);
  auto has_room = [&] {
    return claimed_ < end_ && claimed_ - taken_ < static_cast<std::int64_t>(slots_.size());
  };
  while (room_.wait(lock, stop, has_room) && !stop.stop_requested()) {
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

Prefetcher::Item Prefetcher::take() {
  if (make_) return take_here();
  std::unique_lock lock(mutex_);
  if (taken_ == end_) return nullptr;
  made_.wait(lock, [&] { return slot(taken_).ready(); });
  if (slot(taken_).error) std::rethrow_exception(slot(taken_).error);
  Item item = std::exchange(slot(taken_), Slot()).item;
  ++taken_;
  room_.notify_one();
  return item;
}

Prefetcher::Item Prefetcher::take_here() {
  if (taken_ == end_) return nullptr;
  Item item = make_(taken_);
  ++taken_;
  return item;
}

}  // namespace lockstep::data
