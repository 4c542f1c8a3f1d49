// Memory of this process that is returned to the system as soon as it is released.
#pragma once

#include <cstddef>
#include <memory>

namespace lockstep::sys {

// Allocates zeroed pages, for large short-lived blocks. malloc would keep them after they are freed
// (heap.h), and small blocks between them would fragment them. `bytes` must not be 0. Throws
// SystemError if there is no memory.
//
// Huge pages, if the system supports them, are for memory that is written from end to end: one page
// fault replaces 512, and a TLB entry covers more.
enum class PageSize { usual, huge };
[[nodiscard]] std::shared_ptr<void> private_pages(std::size_t bytes,
                                                  PageSize size = PageSize::usual);

}  // namespace lockstep::sys
