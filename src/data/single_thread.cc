#include "data/single_thread.h"

#include <ATen/Parallel.h>

#include <dlfcn.h>

namespace lockstep::data {

// Does not call at::set_num_threads(), because its number is also the default of every later
// thread. OpenMP's own setting belongs to the calling thread, but a thread's first
// at::get_num_threads() overwrites it, hence the order.
void use_single_thread() {
  if (at::get_num_threads() == 1) return;
  using SetNumThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetNumThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
    set(1);
}

}  // namespace lockstep::data
