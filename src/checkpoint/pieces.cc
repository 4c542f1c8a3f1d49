#include "checkpoint/pieces.h"

#include "base/scope_exit.h"
#include "optim/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

namespace lockstep::checkpoint {

std::size_t piece_workers() {
  constexpr int most = 16;
  return static_cast<std::size_t>(std::clamp(at::get_num_threads(), 1, most));
}

void for_each_piece(
    std::uint64_t bytes, std::uint64_t most,
    const std::function<void(std::size_t worker, std::uint64_t begin, std::uint64_t end)>& work) {
  const std::uint64_t count = (bytes + most - 1) / most;
  const auto workers = static_cast<std::size_t>(std::min<std::uint64_t>(count, piece_workers()));
  // By `ended` this thread sees what the others wrote. The barrier of LibTorch's threads does that
  // too, but not for the eyes of ThreadSanitizer.
  std::atomic<std::uint64_t> next, ended;
  next = ended = 0;
  optim::for_each_in_parallel(workers, [&](std::size_t worker) {
    const ScopeExit end([&] { ++ended; });
    for (std::uint64_t i = next++; i < count; i = next++) {
      try {
        work(worker, i * most, std::min(bytes, (i + 1) * most));
      } catch (...) {
        next = count;
        throw;
      }
    }
  });
  (void)ended.load();
}

}  // namespace lockstep::checkpoint
