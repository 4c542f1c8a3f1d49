#include "data/single_thread.h"

#include <ATen/Parallel.h>

#include <dlfcn.h>

namespace lockstep::data {

// at::set_num_threads() would do, but its number is also what every thread started later begins
// with. OpenMP's own setting belongs to the calling thread; the first at::get_num_threads() of a
// thread overwrites it, hence the order.
void use_single_thread() {
  if (at::get_num_threads() == 1) return;
  using SetNumThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetNumThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
    set(1);
}

}  // namespace lockstep::data
