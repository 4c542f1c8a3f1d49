#include <lockstep/train/program.h>

#include "base/check.h"
#include "base/escaped.h"
#include "elastic/round_loop.h"
#include "rank_env/rank_ends.h"
#include "rank_env/rank_info.h"
#include "rank_env/variables.h"
#include "sys/failure_text.h"
#include "sys/program.h"
#include "train/configuration.h"
#include "train/device.h"
#include "train/option_table.h"
#include "train/program.h"
#include "train/progress.h"
#include "train/run.h"
#include "train/run_folder.h"
#include "train/strategies.h"

#include <lockstep/comm/init.h>
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/train/trainer.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

namespace lockstep::train {
namespace {

constexpr int failure = 1;
constexpr int by_signal = 128;  // plus the signal's number, as in a shell

// Errors that would occur again after every restart end the run in any case
// (src/elastic/round_client.h).
constexpr int elastic_restarts = 1'000'000;
constexpr auto elastic_hung_after = std::chrono::seconds(30);

int launch_copies(const RankProgram& program, int ranks) {
  try {
    program.check(ranks);
    program.check_files();
  } catch (const BadInput& error) {
    throw UsageError(error.what());
  }
  launch::Copies copies{.words = program.words,
                        .ranks = ranks,
                        .grace = program.grace,
                        .explained_exit_code = failure};
  if (program.elastic_body) {
    copies.max_restarts = elastic_restarts;
    copies.hung_after = elastic_hung_after;
  }
  if (auto terminal = terminal_of(stdout))
    copies.variables.emplace_back("LOCKSTEP_TERMINAL", *terminal);
  if (!program.flight_folder.empty())
    copies.variables.emplace_back(rank_env::variable::flight_folder, program.flight_folder);
  return program.start(copies);
}

void check_together(const RankProgram& program, Group& world) {
  run_on_all_or_fail(world, [&] {
    check_input(program.ranks == 0 || program.ranks == world.size(),
                "--ranks {}: the launcher started {}", program.ranks, world.size());
    program.check(world.size());
    if (world.is_root()) program.check_files();
  });
}

int be_a_rank(const RankProgram& program) {
  const bool is_elastic = program.elastic_body != nullptr;
  std::string speaker;
  bool speaks_for_all = true;
  int code = failure;
  const auto begins = [&](const Group& group) {
    speaker = group.size() > 1 ? formatted("rank {}: ", group.rank()) : "";
    speaks_for_all = group.is_root();
  };
  std::optional<Group> world;
  if (!is_elastic) world = init({.device = program.device});
  try {
    if (is_elastic) return program.elastic_body(begins);
    begins(*world);
    code = usage_exit_code;
    check_together(program, *world);
    code = failure;
    return program.body(*world);
  } catch (const CollectiveFailure& error) {
    rank_env::record_own_failure(error.what());
    if (!is_elastic) say_final_failure(error.what());  // a restart would fail again
    return speaks_for_all ? sys::complain(program.command, error.what(), code) : code;
  } catch (const std::exception& error) {
    return sys::complain(program.command, speaker + sys::failure_text(error), failure);
  }
}

// A missing device is still missing after a restart.
void check_device_of(const RankProgram& program) {
  try {
    check_device(program.device);
  } catch (const BadInput& error) {
    say_final_failure(error.what());
    throw UsageError(error.what());
  }
}

// Checks the options. An elastic run starts with the largest number of ranks that makes whole
// copies of the model.
void check_start(Configuration& run, int ranks) {
  const Options& options = run.options;
  if (options.elastic) {
    const int of_a_model = ranks_of_a_model(options);
    check_input(ranks >= of_a_model, "--mesh {}: expected at least {} ranks for one copy, found {}",
                mesh_text(options.mesh), of_a_model, ranks);
    ranks = ranks / of_a_model * of_a_model;
  }
  check_run(run, ranks);
}

// An invalid command line stays invalid after a restart.
CommandLine line_of(const std::string& name, const std::vector<Task*>& tasks,
                    const std::vector<std::string>& words) {
  try {
    return parse_command_line(name, tasks, words);
  } catch (const BadInput& error) {
    say_final_failure(error.what());
    throw;
  }
}

int exit_code(const Report& report) { return report.signal == 0 ? 0 : by_signal + report.signal; }

}  // namespace

int run_ranks(const RankProgram& program) {
  check_device_of(program);
  auto ranks = static_cast<int>(program.ranks > 0 ? program.ranks : program.usual_ranks);
  const bool has_copies = ranks > 1 || program.elastic_body;
  return !rank_env::is_launched() && has_copies ? launch_copies(program, ranks)
                                                : be_a_rank(program);
}

int run_program(const std::string& name, const std::string& shell_name,
                const std::vector<Task*>& tasks, const std::vector<std::string>& words,
                launch::StartCopies start) {
  return sys::run_program(name, [&] {
    const CommandLine line = line_of(name, tasks, words);
    if (!line.run) {
      print_to(stdout, "{}", line.help);
      return 0;
    }
    Configuration& run = *line.run;
    Options& options = run.options;
    options.command = shell_name + " " + options.command;
    RankProgram program{
        .command = name,
        .start = start,
        .words = words,
        .ranks = options.ranks,
        .usual_ranks = usual_ranks(options),
        .device = device_for_init(options),
        .flight_folder = options.out,
        .grace = options.grace,
        .check = [&](int ranks) { check_start(run, ranks); },
        // A folder of another run is refused before any process starts.
        .check_files = [&] { RunFolder(run).check_start(); },
        .body = [&](Group world) { return exit_code(train(run, std::move(world))); }};
    if (options.elastic)
      program.elastic_body = [&](const auto& begins) {
        const std::optional<Report> report = train_elastically(run, begins);
        return report ? exit_code(*report) : 0;
      };
    return run_ranks(program);
  });
}

int run_program(Task& task, int count, char** words, launch::StartCopies start) {
  const std::string program = count > 0 ? words[0] : task.name();
  std::vector<std::string> rest;
  for (int i = 1; i < count; ++i) rest.emplace_back(words[i]);
  return run_program(program, shell_word(program), {&task}, rest, start);
}

}  // namespace lockstep::train
