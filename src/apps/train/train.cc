// lockstep-train: `lockstep train gpt|mnist|mlp`.
//
// A process that a launcher started is a rank and trains. One that nobody launched is one rank too,
// or with --ranks N becomes the launcher of N copies of itself.
#include <lockstep/base/check.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/format.h>
#include <lockstep/comm/init.h>
#include <lockstep/launch/agent.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/command_line.h>
#include <lockstep/train/progress.h>
#include <lockstep/train/trainer.h>

#include "train/resume_command.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace {

using namespace lockstep;

// Exit codes. 0: the run is done. 128 + N: signal N ended it (130 for Ctrl-C, 143 for SIGTERM, 129
// for SIGHUP, 141 for a closed standard output), and a checkpoint is there. 1: a line on standard
// error says why not.
constexpr int failure = 1;
constexpr int by_signal = 128;

bool is_launched() {
  return std::getenv(launch::variable::rank) != nullptr &&
         std::getenv(launch::variable::world_size) != nullptr;
}

// How a shell finds this program: by the dispatcher's name where PATH leads to it.
std::string program_name() {
  namespace fs = std::filesystem;
  const fs::path dispatcher = fs::read_symlink("/proc/self/exe").parent_path() / "lockstep";
  std::istringstream folders(environment::text("PATH").value_or(""));
  std::error_code none;
  for (std::string folder; std::getline(folders, folder, ':');)
    if (fs::equivalent(fs::path(folder) / "lockstep", dispatcher, none)) return "lockstep train";
  return train::shell_word(dispatcher.string()) + " train";
}

int complain(const std::string& who, const std::string& what) {
  print_to(stderr, "lockstep train: {}{}\n", who, what);
  return failure;
}

int start_ranks(const train::Options& options, const std::vector<std::string>& words) {
  train::check_options(options, static_cast<int>(options.ranks));
  launch::WorkerSpec spec{.program = std::filesystem::read_symlink("/proc/self/exe"),
                          .arguments = words,
                          .ranks = static_cast<int>(options.ranks),
                          .prefix = launch::PrefixStyle::none,
                          .forward_signals = true,
                          .explained_exit_code = failure};
  if (train::is_terminal(stdout)) spec.environment.emplace_back("LOCKSTEP_TERMINAL", "1");
  return launch::Agent(spec).run().exit_code;
}

int be_a_rank(const train::Options& options) {
  Group world = init();
  std::string who = world.size() > 1 ? formatted("rank {}: ", world.rank()) : "";
  try {
    train::together(world, [&] {
      check_input(options.ranks == 0 || options.ranks == world.size(),
                  "--ranks {}: the launcher started {}", options.ranks, world.size());
    });
    int signal = train::train(options, world).signal;
    return signal == 0 ? 0 : by_signal + signal;
  } catch (const train::CommonFailure& error) {
    return world.is_root() ? complain("", error.what()) : failure;
  } catch (const std::exception& error) {
    return complain(who, error.what());
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> words(arguments + 1, arguments + count);
  try {
    train::CommandLine line = train::parse_command_line(words);
    if (!line.help.empty()) {
      print_to(stdout, "{}", line.help);
      return 0;
    }
    if (line.options.ranks > 1 && !is_launched()) return start_ranks(line.options, words);
    line.options.command = program_name() + " " + line.options.command;
    return be_a_rank(line.options);
  } catch (const std::exception& error) {
    return complain("", error.what());
  }
}
