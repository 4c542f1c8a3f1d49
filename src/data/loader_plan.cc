#include <lockstep/data/loader_plan.h>

#include <lockstep/base/error.h>

#include <algorithm>

namespace lockstep::data {
namespace {

Sampler sampler_for(std::int64_t samples, const LoaderOptions& options) {
  if (options.batch_size < 1 || options.workers < 0 || options.prefetch < 1) {
    throw InvalidArgument(
        c10::str("loader: expected batch_size >= 1, workers >= 0 and prefetch >= 1, found ",
                 options.batch_size, ", ", options.workers, " and ", options.prefetch));
  }
  return Sampler(samples, {.rank = options.group.rank(),
                           .world = options.group.size(),
                           .seed = options.seed,
                           .shuffle = options.shuffle,
                           .drop_last = options.drop_last,
                           .uneven = options.uneven});
}

std::int64_t batches_of(std::int64_t samples, const LoaderOptions& options) {
  return (samples + (options.drop_last ? 0 : options.batch_size - 1)) / options.batch_size;
}

void check_equal(const char* field, std::uint64_t expected, std::uint64_t found) {
  if (expected != found) {
    throw BadInput(
        c10::str("resuming a loader: expected ", field, " ", expected, ", found ", found));
  }
}

}  // namespace

LoaderPlan::LoaderPlan(std::int64_t samples, const LoaderOptions& options)
    : sampler_(sampler_for(samples, options)),
      batch_size_(options.batch_size),
      batches_(batches_of(sampler_.size(), options)),
      end_(options.uneven
               ? batches_of((samples + options.group.size() - 1) / options.group.size(), options)
               : batches_) {
  if (samples == 0) throw BadInput("loader: expected a dataset with samples, found an empty one");
  if (options.drop_last && batches_ == 0) {
    throw BadInput(c10::str("loader: expected ", batch_size_ * options.group.size(),
                            " samples or more, a batch of ", batch_size_, " for each of ",
                            options.group.size(), " ranks (drop_last), found ", samples));
  }
}

c10::ArrayRef<std::size_t> LoaderPlan::piece(const std::vector<std::size_t>& order,
                                             std::int64_t batch) const {
  const auto begin = static_cast<std::size_t>(batch * batch_size_);
  return c10::ArrayRef(order).slice(
      begin, std::min(static_cast<std::size_t>(batch_size_), order.size() - begin));
}

LoaderState LoaderPlan::state_at(std::int64_t epoch, std::int64_t batches) const {
  const SamplerOptions& options = sampler_.options();
  return {.epoch = epoch,
          .batches = batches,
          .seed = options.seed,
          .samples = sampler_.samples(),
          .global_batch = batch_size_ * options.world,
          .shuffle = options.shuffle,
          .drop_last = options.drop_last};
}

void LoaderPlan::check(const LoaderState& state) const {
  const LoaderState own = state_at(0, 0);
  check_equal("seed", own.seed, state.seed);
  check_equal("samples", static_cast<std::uint64_t>(own.samples),
              static_cast<std::uint64_t>(state.samples));
  check_equal("global_batch", static_cast<std::uint64_t>(own.global_batch),
              static_cast<std::uint64_t>(state.global_batch));
  check_equal("shuffle", own.shuffle, state.shuffle);
  check_equal("drop_last", own.drop_last, state.drop_last);
  if (state.epoch < 0 || state.batches < 0 || state.batches > end_) {
    throw BadInput(c10::str("resuming a loader: expected an epoch >= 0 and 0 to ", end_,
                            " batches, found ", state.epoch, " and ", state.batches));
  }
}

}  // namespace lockstep::data
