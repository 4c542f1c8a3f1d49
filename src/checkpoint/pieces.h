// Long stretches of bytes, read or copied by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace lockstep::checkpoint {

// How many threads for_each_piece() takes at most: as many as LibTorch's operations take, but no
// more than the memory keeps busy.
[[nodiscard]] std::size_t piece_workers();

// Calls work(worker, begin, end) for pieces of 0 to `bytes`, each of `most` bytes or, the last one,
// fewer. A thread that has finished a piece takes the next one; `worker`, below piece_workers(), is
// never in two calls at once. Blocks until all is done, or throws what a call throws, when no other
// call is under way any more.
void for_each_piece(
    std::uint64_t bytes, std::uint64_t most,
    const std::function<void(std::size_t worker, std::uint64_t begin, std::uint64_t end)>& work);

// The same of several stretches, given by their bytes: a thread that finds no more pieces of one
// goes on with the next, so that threads wait for each other only once.
struct Piece {
  std::size_t stretch = 0;
  std::uint64_t begin = 0, end = 0;  // in the stretch
};
void for_each_piece(std::span<const std::uint64_t> stretches, std::uint64_t most,
                    const std::function<void(std::size_t worker, const Piece& piece)>& work);

}  // namespace lockstep::checkpoint
