#include <lockstep/data/stream.h>

#include "base/check.h"

namespace lockstep::data {

StreamPlan::StreamPlan(const StreamOptions& options)
    : batch_(options.batch_size),
      world_(options.group.size()),
      rank_(options.group.rank()),
      drop_last_(options.drop_last),
      uneven_(options.uneven) {
  lockstep::check(options.batch_size >= 1,
                  "stream_loader: expected a batch_size of at least 1, found {}",
                  options.batch_size);
  lockstep::check(
      options.batch_size >= options.group.size(),
      "stream_loader: expected a batch_size of at least the number of ranks, {}, found {}",
      options.group.size(), options.batch_size);
  lockstep::check(options.workers >= 0, "stream_loader: expected workers of at least 0, found {}",
                  options.workers);
  lockstep::check(options.prefetch >= 1,
                  "stream_loader: expected a prefetch of at least 1, found {}", options.prefetch);
  lockstep::check(!options.drop_last || !options.uneven,
                  "stream_loader: drop_last and uneven cannot both be set");
}

std::int64_t StreamPlan::rows_of_last(std::int64_t begin, std::int64_t found) const {
  if (drop_last_ || found == 0) return 0;
  const auto own_before = [this](std::int64_t end) { return (end - rank_ + world_ - 1) / world_; };
  const std::int64_t end = begin + found;
  if (uneven_) return own_before(end) - own_before(begin);
  const std::int64_t divided = (end + world_ - 1) / world_ * world_;
  return std::max<std::int64_t>(1, own_before(divided) - own_before(begin));
}

LoaderState StreamPlan::state_at(std::int64_t epoch, std::int64_t batches) const {
  return {.epoch = epoch,
          .batches = batches,
          .global_batch = global_batch(),
          .shuffle = false,
          .drop_last = drop_last_};
}

void StreamPlan::check(const LoaderState& state) const {
  check_input(state.epoch >= 0 && state.batches >= 0,
              "resuming a stream: expected an epoch and a batch of at least 0, found {} and {}",
              state.epoch, state.batches);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / global_batch();
  check_input(state.batches <= most,
              "resuming a stream: expected no more than {} batches, found {}", most, state.batches);
  const LoaderState own = state_at(state.epoch, state.batches);
  check_input(
      state == own,
      "resuming a stream: expected the state of a stream with the same options, {}, found {}",
      own.to_text(), state.to_text());
}

}  // namespace lockstep::data
