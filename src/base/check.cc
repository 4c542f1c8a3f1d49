#include "base/check.h"

namespace lockstep::detail {

void throw_invalid_argument(const std::string& text) { throw InvalidArgument(text); }
void throw_bad_input(const std::string& text) { throw BadInput(text); }

}  // namespace lockstep::detail
