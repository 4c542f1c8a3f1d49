// lockstep-bench-rank: one of our ranks, which bench/run.py measures next to the peers. Not
// installed.
#include "base/check.h"
#include "base/text.h"
#include "serve.h"

#include "sys/heap.h"
#include "sys/program.h"

#include <iostream>
#include <map>
#include <string>

namespace lockstep::bench {

void serve(std::istream& in, std::ostream& out, const nlohmann::json& ready, const Answer& answer) {
  out << ready.dump() << std::endl;
  for (std::string line; std::getline(in, line);) out << answer(line).dump() << std::endl;
}

std::size_t steps_of(const std::string& line) {
  auto steps = parse_integer(line);
  check_input(steps && *steps >= 0, "expected a number of steps, found '{}'", line);
  return static_cast<std::size_t>(*steps);
}

nlohmann::json seconds_of_steps(const std::string& line, const std::function<double()>& step) {
  std::vector<double> seconds(steps_of(line));
  for (double& value : seconds) value = step();
  return {{"seconds", seconds}};
}

namespace {

// Prints the settings for a peer that should use the same: {"MALLOC_...": "...", ...}.
int print_malloc_settings(const Words&) {
  nlohmann::json variables;
  for (auto& [variable, value] : sys::malloc_settings) variables[variable] = std::to_string(value);
  std::cout << variables.dump() << std::endl;
  return 0;
}

int be_a_rank(const Words& words) {
  const std::map<std::string, int (*)(const Words&)> kinds{{"collectives", serve_collectives},
                                                           {"step", serve_steps},
                                                           {"tail", serve_tails},
                                                           {"pipeline", serve_pipelines},
                                                           {"trigger", serve_trigger},
                                                           {"optimizer", serve_optimizer},
                                                           {"launch", be_launched},
                                                           {"checkpoint", serve_checkpoints},
                                                           {"malloc", print_malloc_settings}};
  auto found = words.empty() ? kinds.end() : kinds.find(words.front());
  if (found == kinds.end())
    throw UsageError(
        "expected collectives, step, tail, pipeline, trigger, optimizer, launch, checkpoint or "
        "malloc");
  return found->second({words.begin() + 1, words.end()});
}

}  // namespace
}  // namespace lockstep::bench

int main(int count, char** words) {
  return lockstep::sys::run_program("lockstep-bench-rank", [&] {
    return lockstep::bench::be_a_rank({words + 1, words + count});
  });
}
