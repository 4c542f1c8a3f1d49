#include <lockstep/base/error.h>

#include <system_error>

namespace lockstep {

SystemError::SystemError(const std::string& what, int error_number)
    : Error(what + ": " + std::generic_category().message(error_number)),
      error_number_(error_number) {}

}  // namespace lockstep
