#include <lockstep/launch/copies.h>

#include "launch/agent.h"

#include "sys/files.h"

namespace lockstep::launch {

int start_copies(const Copies& copies) {
  WorkerSpec spec{.program = sys::own_program(),
                  .arguments = copies.words,
                  .ranks = copies.ranks,
                  .max_restarts = copies.max_restarts,
                  .hung_after = copies.hung_after,
                  .prefix = PrefixStyle::none,
                  .grace = copies.grace,
                  .forward_signals = true,
                  .stop_without_reader = true,
                  .explained_exit_code = copies.explained_exit_code};
  spec.environment.insert(spec.environment.end(), copies.variables.begin(), copies.variables.end());
  return Agent(spec).run().exit_code;
}

}  // namespace lockstep::launch
