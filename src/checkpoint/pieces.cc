#include "checkpoint/pieces.h"

#include "base/scope_exit.h"
#include "optim/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace lockstep::checkpoint {

std::size_t piece_workers() {
  constexpr int most = 16;
  return static_cast<std::size_t>(std::clamp(at::get_num_threads(), 1, most));
}

void for_each_piece(std::span<const std::uint64_t> stretches, std::uint64_t most,
                    const std::function<void(std::size_t worker, const Piece& piece)>& work) {
  std::vector<std::uint64_t> ends;  // cumulative number of pieces by stretch
  for (const std::uint64_t bytes : stretches)
    ends.push_back((ends.empty() ? 0 : ends.back()) + (bytes + most - 1) / most);
  const std::uint64_t count = ends.empty() ? 0 : ends.back();
  const auto piece_of = [&](std::uint64_t number) {
    const auto stretch =
        static_cast<std::size_t>(std::ranges::upper_bound(ends, number) - ends.begin());
    const std::uint64_t begin = (number - (stretch == 0 ? 0 : ends[stretch - 1])) * most;
    return Piece{stretch, begin, std::min(stretches[stretch], begin + most)};
  };
  const auto workers = static_cast<std::size_t>(std::min<std::uint64_t>(count, piece_workers()));
  // Reading `ended` makes the other threads' writes visible to this one. The barrier of LibTorch's
  // threads does that too, but ThreadSanitizer does not know it.
  std::atomic<std::uint64_t> next, ended;
  next = ended = 0;
  optim::for_each_in_parallel(workers, [&](std::size_t worker) {
    const ScopeExit end([&] { ++ended; });
    for (std::uint64_t i = next++; i < count; i = next++) {
      try {
        work(worker, piece_of(i));
      } catch (...) {
        next = count;
        throw;
      }
    }
  });
  (void)ended.load();
}

}  // namespace lockstep::checkpoint
