// Limits a worker of the loader to one thread.
#pragma once

namespace lockstep::data {

// Makes LibTorch operations in the calling thread run on this thread only; the number of threads in
// other threads does not change.
void use_single_thread();

}  // namespace lockstep::data
