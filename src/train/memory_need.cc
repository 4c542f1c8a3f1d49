#include "train/memory_need.h"

#include "sys/failure_text.h"

#include <lockstep/base/check.h>
#include <lockstep/base/environment.h>

namespace lockstep::train {
namespace {

constexpr double bytes_of_a_number = 4;

double numbers_of_state(const Options& options) {
  if (options.optimizer == "adamw") return 2;
  return options.momentum > 0 ? 1 : 0;
}

// "1.24M", "40.0B": numbers of parameters as they are usually said.
std::string count_text(double count) {
  if (count >= 1e12) return formatted("{:.1f}T", count / 1e12);
  return count >= 1e9 ? formatted("{:.1f}B", count / 1e9) : formatted("{:.1f}M", count / 1e6);
}

}  // namespace

double bytes_of_a_rank(const Options& options, double parameters, int ranks) {
  double all = 2 + numbers_of_state(options);
  double whole = 0;  // of those, what a rank has undivided
  if (options.shard == "none") whole = all;
  if (options.shard == "optimizer" && !options.node_shared) whole = 2;
  if (options.shard == "gradients" && !options.node_shared) whole = 1;
  return bytes_of_a_number * parameters * (whole + (all - whole) / ranks);
}

void check_memory(const Options& options, double parameters, int ranks, int local_ranks,
                  const sys::MemorySize& memory) {
  if (!options.offload.empty()) return;
  double need = bytes_of_a_rank(options, parameters, ranks);
  check_input(need * local_ranks <= static_cast<double>(memory.available),
              "the model does not fit: {} parameters, their gradients and the state of {} take at "
              "least {}{}, and {}; choose a smaller --width or --layers{}",
              count_text(parameters), options.optimizer, sys::rough_size(need),
              local_ranks > 1 ? formatted(" in each of {} ranks on this machine", local_ranks) : "",
              sys::free_memory_text(memory),
              options.shard == "none" && ranks > 1 ? ", or divide it by --shard full" : "");
}

void check_memory(const Options& options, double parameters, int ranks) {
  auto local_ranks = environment::integer("LOCAL_WORLD_SIZE", 1, ranks).value_or(1);
  check_memory(options, parameters, ranks, static_cast<int>(local_ranks), sys::memory_size());
}

}  // namespace lockstep::train
