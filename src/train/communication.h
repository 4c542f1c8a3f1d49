// What --hook, --local-sgd and --diloco make of the options: how many bytes ranks send each other.
#pragma once

#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/data/diloco.h>
#include <lockstep/train/options.h>

#include <memory>

namespace lockstep::train {

// BadInput for what does not fit together, or has no meaning without another option.
void check_communication(const Options& options);

// As --hook says; null: none.
[[nodiscard]] std::shared_ptr<CommunicationHook> hook_of_options(const Options& options);

[[nodiscard]] DiLoCoOptions diloco_options(const Options& options);

// Whether each rank trains a copy of its own.
[[nodiscard]] inline bool has_own_copies(const Options& options) {
  return options.local_sgd > 0 || options.diloco > 0;
}

}  // namespace lockstep::train
