// Runs our loops on LibTorch's threads.
#pragma once

#include <cstddef>
#include <functional>

namespace lockstep::optim {

// Calls work(0), ..., work(count - 1), each once, on at::get_num_threads() threads, and returns
// when all are done. With one thread, or inside a parallel region, calls them in order on this
// thread. Rethrows an exception of work().
void for_each_in_parallel(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace lockstep::optim
