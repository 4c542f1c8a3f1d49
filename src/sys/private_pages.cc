#include "sys/private_pages.h"

#include <cerrno>
#include <string>

#include <sys/mman.h>

#include <lockstep/base/error.h>

namespace lockstep::sys {

std::shared_ptr<void> private_pages(std::size_t bytes, PageSize size) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw SystemError("mapping " + std::to_string(bytes) + " bytes of memory", errno);
  if (size == PageSize::huge) (void)::madvise(memory, bytes, MADV_HUGEPAGE);  // only advice
  return {memory, [bytes](void* pages) { ::munmap(pages, bytes); }};
}

}  // namespace lockstep::sys
