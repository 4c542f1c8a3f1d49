#include "parallel/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace lockstep::parallel {

void give_pages_back(const at::Tensor& buffer) {
  if (!buffer.is_cpu() || buffer.nbytes() == 0) return;
  auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<std::uintptr_t>(buffer.const_data_ptr());
  std::uintptr_t end = (begin + buffer.nbytes()) / page * page;
  begin = (begin + page - 1) / page * page;
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_REMOVE);
}

}  // namespace lockstep::parallel
