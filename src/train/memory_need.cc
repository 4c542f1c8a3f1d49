#include "train/memory_need.h"

#include "base/environment.h"
#include "base/format.h"
#include "sys/failure_text.h"
#include "train/option_table.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <optional>

namespace lockstep::train {
namespace {

constexpr double bytes_of_a_number = 4;

double numbers_of_state(const Options& options) {
  if (options.optimizer == OptimizerKind::adamw) return 2;
  return options.momentum > 0 ? 1 : 0;
}

// "1.24M", "40.0B": numbers of parameters as they are usually said.
std::string count_text(double count) {
  if (count >= 1e12) return formatted("{:.1f}T", count / 1e12);
  return count >= 1e9 ? formatted("{:.1f}B", count / 1e9) : formatted("{:.1f}M", count / 1e6);
}

}  // namespace

// As ShardLevel counts; a whole model that is computed with in 16 bits lies beside float32 shards.
double bytes_of_a_rank(const Options& options, double parameters, int ranks) {
  const double state = bytes_of_a_number * numbers_of_state(options);
  const bool is_narrow = options.sharding.compute_dtype.has_value();
  const double number = is_narrow ? 2 : bytes_of_a_number;
  double whole = 0;                                     // what a rank has undivided
  double divided = bytes_of_a_number + number + state;  // parameters, gradients, state
  const std::optional<ShardLevel> level = level_of(options);
  if (!level) {
    whole = divided;
    divided = 0;
  } else if (*level != ShardLevel::full && options.sharding.storage != ShardStorage::node_shared) {
    whole = number;
    if (!is_narrow) divided -= number;
    if (*level == ShardLevel::optimizer) {
      whole += number;
      divided -= number;
    }
  }
  const Division division = division_of(options, ranks);
  const int parts = division.stages * division.tensor * division.experts;
  return parameters * (whole + divided / division.shards) / parts;
}

void check_memory(const Options& options, const ModelSize& model, int ranks, int local_ranks,
                  const sys::MemorySize& memory) {
  if (!options.sharding.offload.empty()) return;
  double kept = bytes_of_a_rank(options, model.parameters, ranks);
  double passing = bytes_of_a_number * model.activations / division_of(options, ranks).context;
  if ((kept + passing) * local_ranks <= static_cast<double>(memory.available)) return;
  std::string text = formatted(
      "the model does not fit: {} parameters, their gradients and the state of {} take at least "
      "{}, the activations of a step {}",
      count_text(model.parameters), word_of(options.optimizer), sys::rough_size(kept),
      sys::rough_size(passing));
  if (local_ranks > 1) text += formatted(" in each of {} ranks on this machine", local_ranks);
  text += formatted("; {}; choose a smaller --width, --layers or --batch",
                    sys::free_memory_text(memory));
  if (!level_of(options) && ranks > 1) text += ", or divide the model by --shard full";
  throw BadInput(text);
}

void check_memory(const Options& options, const ModelSize& model, int ranks) {
  // In a later round of an elastic run: how many there were when this process was started.
  const auto local_ranks =
      std::min<std::int64_t>(ranks, environment::integer("LOCAL_WORLD_SIZE", 1).value_or(1));
  check_memory(options, model, ranks, static_cast<int>(local_ranks), sys::memory_size());
}

}  // namespace lockstep::train
