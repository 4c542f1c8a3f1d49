// Prefetcher: worker threads make numbered items ahead of time, and take() returns them in order.
//
// Item n is made by make(n) alone, so the items do not depend on the number or speed of the
// workers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

// Only one thread may call take(). No worker outlives the object: the destructor stops all workers,
// waits for the items that are being made, and drops them. The program's signals are not delivered
// to workers. A forked child has no workers; it may destroy its copy of the object but must not use
// it otherwise.
class Prefetcher {
 public:
  using Item = std::shared_ptr<void>;  // never null
  using Make = std::function<Item(std::int64_t number)>;

  // Makes the items begin ... end - 1. Each of `workers` runs in its own thread, so they may have
  // state but must not share it. The overload without workers calls `make` from take(). At most
  // `ahead` items (at least one) are finished or in progress and not yet taken.
  Prefetcher(std::int64_t begin, std::int64_t end, std::vector<Make> workers, std::int64_t ahead);
  Prefetcher(std::int64_t begin, std::int64_t end, Make make);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Returns the next item, or null after the last one. Blocks until the item is made. If make()
  // threw for this item, rethrows its exception, in this and every later call.
  [[nodiscard]] Item take();

  // Lets the workers make no more items, and does not wait for them; the destructor does. Call
  // take() no more.
  void request_stop() noexcept;

 private:
  class Line;
  std::shared_ptr<Line> line_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
