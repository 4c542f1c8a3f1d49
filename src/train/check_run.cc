// What the options of a run must be together.
#include "base/check.h"
#include "base/counted.h"
#include "base/text.h"
#include "base/visible.h"
#include "train/communication.h"
#include "train/elastic_options.h"
#include "train/option_settings.h"
#include "train/strategy.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::train {
namespace {

// What only a strategy that divides the model has.
void check_division(const Options& options) {
  const Options unset;
  for (auto [given, name] : {std::pair(options.node_shared, "--node-shared"),
                             std::pair(!options.offload.empty(), "--offload"),
                             std::pair(options.deferred, "--deferred")})
    check_input(!given || options.shard != "none", "{} needs --shard optimizer, gradients or full",
                name);
  for (const auto& [name, dtype] : {std::pair("--precision", options.precision),
                                    std::pair("--reduce-dtype", options.reduce_dtype)})
    check_input(dtype == "fp32" || options.shard != "none",
                "{} {} needs --shard optimizer, gradients or full: --shard none computes and sums "
                "in the parameters' own fp32",
                name, dtype);
  check_input(options.prefetch == unset.prefetch || options.shard == "full",
              "--prefetch {} needs --shard full, found --shard {}", options.prefetch,
              options.shard);
  check_input(!options.reduce_in_step || options.node_shared,
              "--reduce-in-step needs --node-shared");
}

void check_batch(const Options& options, std::int64_t learners) {
  const std::int64_t parts = options.accumulate * learners;
  if (options.batch % parts == 0) return;
  const std::int64_t below = options.batch / parts * parts, above = below + parts;
  throw BadInput(
      formatted("--batch {} must be divisible by {} ({} x {}); try --batch {}", options.batch,
                parts, counted(learners, options.strategy == "ps" ? "worker" : "rank"),
                counted(options.accumulate, "micro-batch", "es"),
                below > 0 ? formatted("{} or {}", below, above) : formatted("{}", above)));
}

void check_start_options(const Options& options) {
  check_input(!options.out.empty(), "--out is missing: name a folder for the run");
  const bool goes_on = options.resume || options.resume_auto || !options.resume_from.empty();
  check_input(!options.overwrite || !goes_on, "give --resume or --overwrite, not both");
  check_input(parse_duration(options.grace).value_or(Duration(-1)) >= Duration::zero(),
              "--grace: expected a time such as 10, 2.5s or 1m, found '{}'",
              visible(options.grace));
}

}  // namespace

void check_run(const Options& options, const Task& task, int ranks) {
  check_strategy(options, ranks);
  check_elastic(options);
  const std::int64_t workers = ranks - server_count(options);
  const Division division =
      options.strategy == "ddp" ? division_of(options, ranks) : Division{.copies = ranks};
  const std::int64_t learners =  // that have rows of their own
      options.strategy == "ddp" ? division.learners() : workers;
  if (!options.elastic) check_batch(options, learners);
  check_input((options.steps > 0) != (options.epochs > 0),
              "give --steps or --epochs: found {} and {}", options.steps, options.epochs);
  check_input(options.min_lr <= options.lr, "--min-lr {} is above --lr {}", options.min_lr,
              options.lr);
  check_division(options);
  check_communication(options);
  task.check();
  check_axes(options, task, division);
  check_start_options(options);
  const std::filesystem::path trace(options.trace);
  check_input(trace.empty() || std::filesystem::is_directory(
                                   trace.has_parent_path() ? trace.parent_path() : "."),
              "--trace {}: expected a file in a folder that is there", visible(options.trace));
}

}  // namespace lockstep::train
