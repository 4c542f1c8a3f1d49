// Long byte ranges, read or copied by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace lockstep::checkpoint {

// Returns the maximum number of threads of for_each_piece(): as many as LibTorch's operations use,
// but no more than saturate the memory.
[[nodiscard]] std::size_t piece_workers();

// A piece of one of several byte ranges.
struct Piece {
  std::size_t stretch = 0;
  std::uint64_t begin = 0, end = 0;  // in the stretch
};

// Splits byte ranges, given by their lengths, into pieces of at most `most` bytes and calls
// work(worker, piece) for each. A thread that has finished a piece takes the next one, without a
// barrier between ranges; no two concurrent calls have the same `worker`, which is below
// piece_workers(). Blocks until all calls have ended; rethrows an exception of a call after that.
void for_each_piece(std::span<const std::uint64_t> stretches, std::uint64_t most,
                    const std::function<void(std::size_t worker, const Piece& piece)>& work);

}  // namespace lockstep::checkpoint
