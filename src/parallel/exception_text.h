// What an exception that has left a thread says, in one line.
#pragma once

#include <exception>
#include <string>

namespace lockstep::parallel {

// The first line, without LibTorch's stack trace. `problem` is not null.
[[nodiscard]] std::string exception_text(const std::exception_ptr& problem);

}  // namespace lockstep::parallel
