#include <lockstep/launch/copies.h>

#include "base/check.h"
#include "base/text.h"
#include "launch/agent.h"
#include "sys/files.h"

namespace lockstep::launch {

int start_copies(const Copies& copies) {
  // Agent's messages name the options of `lockstep run`, which the calling program need not have.
  check_input(
      copies.ranks >= 1 && copies.max_restarts >= 0 && copies.grace >= Duration::zero() &&
          copies.hung_after >= Duration::zero(),
      "start_copies: expected ranks of at least 1, and max_restarts, grace and hung_after of "
      "at least 0; found {}, {}, {} and {}",
      copies.ranks, copies.max_restarts, format_duration(copies.grace),
      format_duration(copies.hung_after));
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
  for (const auto& [name, value] : copies.variables) spec.environment[name] = value;
  return Agent(spec).run().exit_code;
}

}  // namespace lockstep::launch
