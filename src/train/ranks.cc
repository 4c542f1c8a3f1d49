#include "train/ranks.h"

#include "base/check.h"
#include "base/command_options.h"
#include "base/format.h"
#include "elastic/round_loop.h"
#include "launch/agent.h"
#include "launch/detection/own_failure.h"
#include "launch/detection/rank_info.h"
#include "sys/failure_text.h"
#include "sys/program.h"
#include "train/progress.h"

#include <lockstep/comm/init.h>
#include <lockstep/comm/together.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

namespace lockstep::train {
namespace {

constexpr int failure = 1;

// Errors that every restart would meet again end the run in any case (src/elastic/rounds.h).
constexpr int elastic_restarts = 1'000'000;
constexpr auto elastic_hung_after = std::chrono::seconds(30);

int start_copies(const RankProgram& program, int ranks) {
  try {
    program.check(ranks);
    program.check_files();
  } catch (const BadInput& error) {
    throw UsageError(error.what());
  }
  launch::WorkerSpec spec{.program = std::filesystem::read_symlink("/proc/self/exe"),
                          .arguments = program.words,
                          .ranks = ranks,
                          .prefix = launch::PrefixStyle::none,
                          .grace = program.grace,
                          .forward_signals = true,
                          .stop_without_reader = true,
                          .explained_exit_code = failure};
  if (program.is_elastic) {
    spec.max_restarts = elastic_restarts;
    spec.hung_after = elastic_hung_after;
  }
  if (auto terminal = terminal_of(stdout))
    spec.environment.emplace_back("LOCKSTEP_TERMINAL", *terminal);
  if (!program.flight_folder.empty())
    spec.environment.emplace_back(launch::variable::flight_folder, program.flight_folder);
  return launch::Agent(spec).run().exit_code;
}

int be_a_rank(const RankProgram& program) {
  Group world = init();
  std::string speaker = world.size() > 1 ? formatted("rank {}: ", world.rank()) : "";
  int code = usage_exit_code;
  try {
    together(world, [&] {
      check_input(program.ranks == 0 || program.ranks == world.size(),
                  "--ranks {}: the launcher started {}", program.ranks, world.size());
      program.check(world.size());
      if (world.is_root()) program.check_files();
    });
    code = failure;
    return program.body(world);
  } catch (const CommonFailure& error) {
    launch::record_own_failure(error.what());
    say_final_failure(error.what());  // a restart would meet it again
    return world.is_root() ? sys::complain(program.command, error.what(), code) : code;
  } catch (const std::exception& error) {
    return sys::complain(program.command, speaker + sys::failure_text(error), failure);
  }
}

int be_elastic_rank(const RankProgram& program) {
  std::string speaker;
  bool speaks_for_all = true;
  try {
    return program.elastic_body([&](const Group& group) {
      speaker = group.size() > 1 ? formatted("rank {}: ", group.rank()) : "";
      speaks_for_all = group.is_root();
    });
  } catch (const CommonFailure& error) {
    launch::record_own_failure(error.what());
    return speaks_for_all ? sys::complain(program.command, error.what(), failure) : failure;
  } catch (const std::exception& error) {
    return sys::complain(program.command, speaker + sys::failure_text(error), failure);
  }
}

}  // namespace

int run_ranks(const RankProgram& program) {
  auto ranks = static_cast<int>(program.ranks > 0 ? program.ranks : program.usual_ranks);
  if (!launch::is_launched() && (ranks > 1 || program.is_elastic))
    return start_copies(program, ranks);
  return program.is_elastic ? be_elastic_rank(program) : be_a_rank(program);
}

}  // namespace lockstep::train
