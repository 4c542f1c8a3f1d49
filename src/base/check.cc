#include <lockstep/base/check.h>

namespace lockstep::detail {

void throw_invalid_argument(fmt::string_view format, fmt::format_args arguments) {
  throw InvalidArgument(fmt::vformat(format, arguments));
}

void throw_bad_input(fmt::string_view format, fmt::format_args arguments) {
  throw BadInput(fmt::vformat(format, arguments));
}

}  // namespace lockstep::detail
