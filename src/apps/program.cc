#include "apps/program.h"

#include "base/visible.h"

#include <lockstep/base/version.h>

#include <cerrno>
#include <cstdio>

namespace lockstep::apps {

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
