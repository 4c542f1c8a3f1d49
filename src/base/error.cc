#include <lockstep/base/error.h>

#include "base/check.h"

#include <system_error>

namespace lockstep {

SystemError::SystemError(const std::string& what, int error_number)
    : Error(what + ": " + std::generic_category().message(error_number)),
      error_number_(error_number) {}

namespace detail {

void throw_invalid_argument(const std::string& text) { throw InvalidArgument(text); }
void throw_bad_input(const std::string& text) { throw BadInput(text); }

}  // namespace detail

}  // namespace lockstep
