// lockstep-train: `lockstep train gpt|mnist|mlp`.
//
// A process that a launcher started is a rank and trains. One that nobody launched is one rank too,
// or with --ranks N becomes the launcher of N copies of itself.
#include "apps/program.h"
#include "comm/joining/place.h"
#include "sys/failure_text.h"

#include <lockstep/base/check.h>
#include <lockstep/base/format.h>
#include <lockstep/comm/init.h>
#include <lockstep/launch/agent.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/command_line.h>
#include <lockstep/train/progress.h>
#include <lockstep/train/trainer.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace lockstep;

// Exit codes. 0: the run is done, or a signal ended it and a checkpoint is there. 1: a line on
// standard error says why not. 2: the same, because of the options.
constexpr int failure = 1;

constexpr const char* command = "lockstep train";

void check_usage(const train::Options& options, int ranks) {
  try {
    train::check_options(options, ranks);
  } catch (const BadInput& error) {
    throw UsageError(error.what());
  }
}

int start_ranks(const train::Options& options, const std::vector<std::string>& words) {
  check_usage(options, static_cast<int>(options.ranks));
  launch::WorkerSpec spec{.program = std::filesystem::read_symlink("/proc/self/exe"),
                          .arguments = words,
                          .ranks = static_cast<int>(options.ranks),
                          .prefix = launch::PrefixStyle::none,
                          .forward_signals = true,
                          .explained_exit_code = failure};
  if (auto terminal = train::terminal_of(stdout))
    spec.environment.emplace_back("LOCKSTEP_TERMINAL", *terminal);
  return launch::Agent(spec).run().exit_code;
}

int be_a_rank(const train::Options& options) {
  Group world = init();
  std::string who = world.size() > 1 ? formatted("rank {}: ", world.rank()) : "";
  int code = usage_exit_code;
  try {
    train::together(world, [&] {
      check_input(options.ranks == 0 || options.ranks == world.size(),
                  "--ranks {}: the launcher started {}", options.ranks, world.size());
      train::check_options(options, world.size());
    });
    code = failure;
    (void)train::train(options, world);
    return 0;
  } catch (const train::CommonFailure& error) {
    return world.is_root() ? apps::complain(command, error.what(), code) : code;
  } catch (const std::exception& error) {
    return apps::complain(command, who + sys::failure_text(error), failure);
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> words(arguments + 1, arguments + count);
  return apps::run_program(command, [&] {
    train::CommandLine line = train::parse_command_line(words);
    if (!line.help.empty()) {
      print_to(stdout, "{}", line.help);
      return 0;
    }
    if (line.options.ranks > 1 && !joining::is_launched()) return start_ranks(line.options, words);
    return be_a_rank(line.options);
  });
}
