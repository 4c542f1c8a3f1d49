#include <lockstep/launch/copies.h>

#include "launch/agent.h"

#include <filesystem>

namespace lockstep::launch {

int start_copies(const Copies& copies) {
  WorkerSpec spec{.program = std::filesystem::read_symlink("/proc/self/exe"),
                  .arguments = copies.words,
                  .ranks = copies.ranks,
                  .max_restarts = copies.max_restarts,
                  .hung_after = copies.hung_after,
                  .prefix = PrefixStyle::none,
                  .grace = copies.grace,
                  .forward_signals = true,
                  .stop_without_reader = true,
                  .explained_exit_code = copies.explained_exit_code};
  for (const auto& [name, value] : copies.variables) spec.environment[name] = value;
  return Agent(spec).run().exit_code;
}

}  // namespace lockstep::launch
