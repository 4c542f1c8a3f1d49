#include "sys/program.h"

#include "base/command_options.h"
#include "base/format.h"
#include "base/visible.h"
#include "sys/failure_text.h"

#include <cstdio>

namespace lockstep::sys {

int complain(std::string_view command, std::string_view what, int code) {
  constexpr std::size_t longest = 4000;
  print_to(stderr, "{}: {}\n", command, visible_line(what, longest));
  return code;
}

int run_program(std::string_view command, const std::function<int()>& body) {
  try {
    return body();
  } catch (const UsageError& error) {
    return complain(command, error.what(), usage_exit_code);
  } catch (const std::exception& error) {
    return complain(command, failure_text(error), 1);
  }
}

}  // namespace lockstep::sys
