// One thread for the operations of a worker of the loader.
#pragma once

namespace lockstep::data {

// From now on LibTorch's operations in this thread use this thread only, and no other thread's
// count changes.
void use_single_thread();

}  // namespace lockstep::data
