// Memory of this process that goes back to the system as soon as nobody has it.
#pragma once

#include <cstddef>
#include <memory>

namespace lockstep::sys {

// Zeros, by pages. For large blocks that come and go once: what malloc is given back it keeps
// (heap.h), and small blocks that stay between them cut it into pieces that fit nothing. `bytes` is
// not 0. SystemError when there is no memory.
[[nodiscard]] std::shared_ptr<void> private_pages(std::size_t bytes);

}  // namespace lockstep::sys
