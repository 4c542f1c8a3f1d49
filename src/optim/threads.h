// LibTorch's own threads for our loops.
#pragma once

#include <cstddef>
#include <functional>

namespace lockstep::optim {

// Calls work(0), ..., work(count - 1), each once, on at::get_num_threads() threads, and returns
// when all are done; in order on this thread when there is one, or inside a parallel region. What a
// call throws comes out here.
void for_each_in_parallel(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace lockstep::optim
