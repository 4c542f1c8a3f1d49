// Prefetcher: worker threads make numbered items before they are taken, and take() returns them in
// order.
//
// Item n is made by make(n) alone, so what comes out does not depend on how many workers there are
// or which is faster.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

// One thread takes. No worker outlives the object: the destructor waits for the items that are
// being made and drops them. Workers take no signals. A forked child, which has no workers, may
// destroy its copy and nothing else.
class Prefetcher {
 public:
  using Item = std::shared_ptr<void>;  // never null
  using Make = std::function<Item(std::int64_t number)>;

  // Items begin ... end - 1. Each of `workers` runs in a thread of its own, so they may have state
  // but share none; without workers, take() itself calls make. At most `ahead` items (at least one)
  // are made or being made and not yet taken.
  Prefetcher(std::int64_t begin, std::int64_t end, std::vector<Make> workers, std::int64_t ahead);
  Prefetcher(std::int64_t begin, std::int64_t end, Make make);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The next item; null behind the last. Blocks until it is made. What its making threw is thrown
  // here instead, now and at each later call.
  [[nodiscard]] Item take();

 private:
  class Line;
  std::shared_ptr<Line> line_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
