// A deadline for what must happen, on a busy machine too.
#pragma once

#include <lockstep/base/deadline.h>

namespace lockstep::test {

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

}  // namespace lockstep::test
