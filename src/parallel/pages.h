// Pages of buffers that are done with.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::parallel {

// Of a buffer whose values nobody needs, here or on a peer: gives its pages back to the system.
// What Group::empty_shared() makes would otherwise keep them for its next buffer. Does nothing to
// other memory, whose pages go with its tensor.
void give_pages_back(const at::Tensor& buffer);

}  // namespace lockstep::parallel
