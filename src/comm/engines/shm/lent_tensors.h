// The LibTorch face of loans (loans.h): tensors that lend their memory, and tensors over memory
// that is borrowed. Both sides copy on write (c10/core/impl/COW.h): an operation that writes to one
// of them, in place or through data_ptr(), first gives that storage memory of its own. So neither
// sees what the other does, and who only reads never copies.
#pragma once

#include "comm/engines/shm/loans.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace lockstep::shm {

// Keeps the memory of a contiguous CPU tensor as it is now: the tensor's storage, with all that is
// over it, copies on write from now on. Null where that cannot be, since others may know the
// address: memory that did not come from an allocator of tensors. Not while another thread uses
// the storage.
[[nodiscard]] std::shared_ptr<const void> keep_as_it_is(const at::Tensor& tensor);

// A contiguous tensor over what is borrowed. Its memory is let go with the last storage over it.
[[nodiscard]] at::Tensor tensor_over(const Borrowed& borrowed, at::IntArrayRef sizes,
                                     const at::TensorOptions& options);

// What was lent by a world that has ended, of which peers still have tensors. Gives back what is
// over whenever a world of this process begins or ends.
void keep_until_over(std::vector<Loan> loans);

}  // namespace lockstep::shm
