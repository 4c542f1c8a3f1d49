// Work that may take longer than anybody can wait, such as asking a store whose server is stopped.
#pragma once

#include <lockstep/base/deadline.h>

#include <functional>

namespace lockstep::sys {

// Runs `action`, which must not throw, on a thread of its own and returns true when it has ended
// within `limit`. Otherwise the thread is left to itself: `action` must own what it uses.
[[nodiscard]] bool run_with_timeout(std::function<void()> action, Duration limit);

}  // namespace lockstep::sys
