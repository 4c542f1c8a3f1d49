// Returns the message of the exception that `action` throws, for exact comparison.
#pragma once

#include <lockstep/base/error.h>

#include <string>

namespace lockstep::test {

template <class Error = BadInput, class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace lockstep::test
