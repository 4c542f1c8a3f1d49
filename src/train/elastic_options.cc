#include "train/elastic_options.h"

#include "base/check.h"
#include "base/visible.h"
#include "sys/topology.h"
#include "train/axes.h"

#include <algorithm>
#include <utility>

namespace lockstep::train {
namespace {

bool follows_the_ranks(const MeshAxis& axis) {
  return axis.name == copies_axis || axis.name == shards_axis;
}

// Of the axes that keep their sizes; 0 where one of them has none.
int fixed_ranks(const std::vector<MeshAxis>& axes) {
  int product = 1;
  for (const MeshAxis& axis : axes)
    if (!follows_the_ranks(axis)) product *= std::max(axis.size, 0);
  return product;
}

int largest_divisor(int number, int most) {
  int divisor = std::clamp(most, 1, number);
  while (number % divisor != 0) --divisor;
  return divisor;
}

void check_mesh(const Options& options) {
  for (const MeshAxis& axis : parse_axes(options.mesh)) {
    check_input(follows_the_ranks(axis) || axis.name == tensor_axis,
                "--elastic works with the axes dp, fsdp and tp of --mesh, found --mesh {}: train "
                "without --elastic, and go on by --resume when a rank was lost",
                visible(options.mesh));
    check_input(
        axis.name != tensor_axis || axis.size > 0,
        "--elastic: the number of ranks changes, and tp keeps its size: expected one, found "
        "--mesh {}",
        visible(options.mesh));
  }
}

}  // namespace

void check_elastic(const Options& options) {
  check_input(options.elastic || options.slots == 0, "--slots {} needs --elastic", options.slots);
  if (!options.elastic) return;
  check_input(options.strategy == "ddp", "--elastic needs --strategy ddp; found --strategy {}",
              options.strategy);
  check_input(options.precision == "fp32" && options.reduce_dtype == "fp32",
              "--elastic adds up gradients of fp32; found --precision {} --reduce-dtype {}",
              options.precision, options.reduce_dtype);
  if (!options.mesh.empty()) check_mesh(options);
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
  check_input(options.batch % slots == 0,
              "--batch {} must be divisible by --slots {}; try --batch {} or {}", options.batch,
              slots, options.batch / slots * slots, (options.batch / slots + 1) * slots);
}

std::int64_t slots_of(const Options& options) {
  constexpr std::int64_t most = 8;
  if (options.slots > 0) return options.slots;
  std::int64_t slots = std::min(most, options.batch);
  while (slots > 1 && options.batch % slots != 0) --slots;
  return slots;
}

int ranks_of_a_model(const Options& options) {
  return options.mesh.empty() ? 1 : std::max(1, fixed_ranks(parse_axes(options.mesh)));
}

std::vector<MeshAxis> axes_of_round(std::vector<MeshAxis> axes, int ranks) {
  const int fixed = fixed_ranks(axes);
  if (fixed == 0 || ranks % fixed != 0) return axes;
  const int copies = ranks / fixed;
  const auto dp = std::ranges::find(axes, copies_axis, &MeshAxis::name);
  const auto fsdp = std::ranges::find(axes, shards_axis, &MeshAxis::name);
  if (dp == axes.end() && fsdp == axes.end()) {
    axes.insert(axes.begin(), {std::string(copies_axis), copies});
  } else if (fsdp == axes.end()) {
    dp->size = copies;
  } else if (dp == axes.end()) {
    fsdp->size = copies;
  } else if (fsdp->size > 0) {
    fsdp->size = largest_divisor(copies, fsdp->size);
    dp->size = copies / fsdp->size;
  } else {
    dp->size = largest_divisor(copies, dp->size);
    fsdp->size = copies / dp->size;
  }
  return axes;
}

Options elastic_options(Options options) {
  options.slots = slots_of(options);
  if (options.threads == 0)
    options.threads = std::max<std::int64_t>(1, sys::usable_cores() / options.slots);
  return options;
}

}  // namespace lockstep::train
