// lockstep-train: `lockstep train gpt|mnist|mlp`.
#include "apps/program.h"
#include "apps/ranks.h"

#include <lockstep/base/format.h>
#include <lockstep/train/command_line.h>
#include <lockstep/train/trainer.h>

#include <cstdio>
#include <string>
#include <vector>

// Exit codes. 0: the run is done, or a signal ended it and a checkpoint is there. 1: a line on
// standard error says why not. 2: the same, because of the options.
int main(int count, char** arguments) {
  using namespace lockstep;
  constexpr const char* command = "lockstep train";
  std::vector<std::string> words(arguments + 1, arguments + count);
  return apps::run_program(command, [&] {
    train::CommandLine line = train::parse_command_line(words);
    if (!line.help.empty()) {
      print_to(stdout, "{}", line.help);
      return 0;
    }
    const train::Options& options = line.options;
    return apps::run_ranks({.command = command,
                            .words = words,
                            .ranks = options.ranks,
                            .check = [&](int ranks) { train::check_options(options, ranks); },
                            .body =
                                [&](Group world) {
                                  (void)train::train(options, std::move(world));
                                  return 0;
                                }});
  });
}
