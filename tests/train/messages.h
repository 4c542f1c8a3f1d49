// The message of an exception.
#pragma once

#include <functional>
#include <string>

namespace lockstep::test {

// Returns the message of the exception, or "nothing was thrown".
inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace lockstep::test
