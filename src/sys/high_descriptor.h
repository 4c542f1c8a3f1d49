// Descriptors that a child inherits under a high number, which shells and scripts do not use for
// their own.
#pragma once

#include "sys/file_descriptor.h"

namespace lockstep::sys {

// A copy, closed on exec, with a number from 100 on; where the limit of open files is lower than
// that, with the next best. SystemError when there is no room at all.
[[nodiscard]] FileDescriptor with_high_number(const FileDescriptor& descriptor);

}  // namespace lockstep::sys
