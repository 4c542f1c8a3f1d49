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
  if (options.batch_size < options.group.size()) {
    throw InvalidArgument(
        c10::str("loader: expected a batch_size of at least the number of ranks, ",
                 options.group.size(), ", found ", options.batch_size));
  }
  return Sampler(samples, {.rank = options.group.rank(),
                           .world = options.group.size(),
                           .seed = options.seed,
                           .shuffle = options.shuffle,
                           .drop_last = options.drop_last,
                           .uneven = options.uneven});
}

// Returns the number of global batches.
std::int64_t batches_of(std::int64_t samples, const LoaderOptions& options) {
  if (!options.drop_last) return (samples + options.batch_size - 1) / options.batch_size;
  return samples / options.group.size() * options.group.size() / options.batch_size;
}

// Returns the number of batches up to and including the one with this rank's last sample.
std::int64_t own_batches(const Sampler& sampler, const LoaderOptions& options) {
  if (sampler.size() == 0) return 0;
  const std::int64_t last = (sampler.size() - 1) * options.group.size() + options.group.rank();
  return last / options.batch_size + 1;
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
      end_(batches_of(samples, options)),
      batches_(options.uneven ? own_batches(sampler_, options) : end_) {
  if (samples == 0) throw BadInput("loader: expected a dataset with samples, found an empty one");
  if (options.drop_last && batches_ == 0) {
    throw BadInput(c10::str("loader: expected at least ", batch_size_,
                            " samples, because drop_last needs a full batch of all ranks (",
                            options.group.size(), "), found ", samples));
  }
}

// The sampler distributes the order in turn: rank r has the positions r, r + ranks, ...
std::int64_t LoaderPlan::first_of(std::int64_t batch) const {
  const SamplerOptions& options = sampler_.options();
  return (batch * batch_size_ - options.rank + options.world - 1) / options.world;
}

// The last batch contains all remaining samples. A rank without a sample in it reads its last
// sample again, as padding.
c10::ArrayRef<std::size_t> LoaderPlan::piece(const std::vector<std::size_t>& order,
                                             std::int64_t batch) const {
  const auto size = static_cast<std::int64_t>(order.size());
  const std::int64_t begin = std::min(first_of(batch), size - 1);
  const bool is_last = batch + 1 == end_ && !sampler_.options().drop_last;
  const std::int64_t end = is_last ? size : std::min(first_of(batch + 1), size);
  return c10::ArrayRef(order).slice(static_cast<std::size_t>(begin),
                                    static_cast<std::size_t>(end - begin));
}

LoaderState LoaderPlan::state_at(std::int64_t epoch, std::int64_t batches) const {
  const SamplerOptions& options = sampler_.options();
  return {.epoch = epoch,
          .batches = batches,
          .seed = options.seed,
          .samples = sampler_.samples(),
          .global_batch = batch_size_,
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
