#include "apps/program.h"

#include "base/visible.h"
#include "sys/failure_text.h"

#include <lockstep/base/version.h>

#include <cerrno>
#include <cstdio>

namespace lockstep::apps {

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
    return complain(command, sys::failure_text(error), 1);
  }
}

std::optional<int> answer(CommandOptions::Request request, const CommandOptions& options) {
  if (request == CommandOptions::Request::version) return print_version();
  if (request == CommandOptions::Request::go_on) return std::nullopt;
  print_to(stdout, "{}", options.help());
  return 0;
}

void write_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0) throw SystemError("cannot write to standard output", errno);
}

int print_version() {
  print_to(stdout, "lockstep {}\n", version());
  return 0;
}

}  // namespace lockstep::apps
