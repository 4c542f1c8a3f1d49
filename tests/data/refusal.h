// The text of the error that an action ends with; a test compares it whole.
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
