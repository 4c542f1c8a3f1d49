// lockstep-train: `lockstep train gpt|mnist|mlp`.
#include "apps/program.h"
#include "apps/ranks.h"
#include "base/environment.h"
#include "base/format.h"
#include "train/resume_command.h"

#include <lockstep/train/command_line.h>
#include <lockstep/train/trainer.h>

#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace {

using namespace lockstep;

constexpr const char* command = "lockstep train";

// Exit codes. 0: the run is done. 128 + N: signal N ended it (130 for Ctrl-C, 143 for SIGTERM, 129
// for SIGHUP, 141 for a closed standard output), and a checkpoint is there. 1: a line on standard
// error says why not. 2: the same, because of the options.
constexpr int by_signal = 128;

// How a shell finds this program: by the dispatcher's name where PATH leads to it.
std::string program_name() {
  namespace fs = std::filesystem;
  const fs::path dispatcher = fs::read_symlink("/proc/self/exe").parent_path() / "lockstep";
  std::istringstream folders(environment::text("PATH").value_or(""));
  std::error_code none;
  for (std::string folder; std::getline(folders, folder, ':');)
    if (fs::equivalent(fs::path(folder) / "lockstep", dispatcher, none)) return command;
  return train::shell_word(dispatcher.string()) + " train";
}

int be_a_rank(const train::Options& options, Group world) {
  int signal = train::train(options, std::move(world)).signal;
  return signal == 0 ? 0 : by_signal + signal;
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
    train::Options& options = line.options;
    options.command = program_name() + " " + options.command;
    return apps::run_ranks(
        {.command = command,
         .words = words,
         .ranks = options.ranks,
         .flight_folder = options.out,
         .check = [&](int ranks) { train::check_options(options, ranks); },
         .body = [&](Group world) { return be_a_rank(options, std::move(world)); }});
  });
}
