#include "train/elastic_options.h"

#include "base/check.h"
#include "sys/topology.h"

#include <algorithm>
#include <utility>

namespace lockstep::train {

void check_elastic(const Options& options) {
  check_input(options.elastic || options.slots == 0, "--slots {} needs --elastic", options.slots);
  if (!options.elastic) return;
  check_input(options.strategy == "ddp", "--elastic needs --strategy ddp; found --strategy {}",
              options.strategy);
  check_input(options.precision == "fp32" && options.reduce_dtype == "fp32",
              "--elastic adds up gradients of fp32; found --precision {} --reduce-dtype {}",
              options.precision, options.reduce_dtype);
  check_input(options.mesh.empty(),
              "--elastic needs no --mesh: the number of ranks changes; found --mesh {}",
              options.mesh);
  check_input(options.accumulate == 1,
              "--elastic: --slots says how many micro-batches a step has; found --accumulate {}",
              options.accumulate);
  for (const auto& [is_given, name] :
       {std::pair(options.hook != "none", "--hook"),
        std::pair(options.local_sgd > 0, "--local-sgd"), std::pair(options.diloco > 0, "--diloco"),
        std::pair(options.sync_batch_norm, "--sync-batch-norm"),
        std::pair(options.uneven, "--uneven"),
        std::pair(options.reduce_in_step, "--reduce-in-step")})
    check_input(!is_given, "--elastic adds up gradients of slots itself; found {}", name);
  const std::int64_t slots = slots_of(options);
  check_input(options.batch >= slots,
              "--batch {} has fewer rows than --slots {}: each slot needs at least one",
              options.batch, slots);
  check_input(options.batch % slots == 0, "--batch {} cannot be split evenly into --slots {}",
              options.batch, slots);
}

std::int64_t slots_of(const Options& options) {
  constexpr std::int64_t most = 8;
  if (options.slots > 0) return options.slots;
  std::int64_t slots = std::min(most, options.batch);
  while (slots > 1 && options.batch % slots != 0) --slots;
  return slots;
}

Options elastic_options(Options options) {
  options.slots = slots_of(options);
  if (options.threads == 0)
    options.threads = std::max<std::int64_t>(1, sys::usable_cores() / options.slots);
  return options;
}

}  // namespace lockstep::train
