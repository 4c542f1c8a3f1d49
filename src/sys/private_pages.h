// Memory of this process that goes back to the system as soon as nobody has it.
#pragma once

#include <cstddef>
#include <memory>

namespace lockstep::sys {

// Zeros, by pages. For large blocks that come and go once: what malloc is given back it keeps
// (heap.h), and small blocks that stay between them cut it into pieces that fit nothing. `bytes` is
// not 0. SystemError when there is no memory.
//
// Huge pages, where the system gives them, are for what is written from end to end: one page fault
// stands for 512, and the page table's cache reaches further.
enum class PageSize { usual, huge };
[[nodiscard]] std::shared_ptr<void> private_pages(std::size_t bytes,
                                                  PageSize size = PageSize::usual);

}  // namespace lockstep::sys
