// Batches for data that is passed through in epochs, each in another order.
#pragma once

#include "base/check.h"
#include "train/task.h"

#include <lockstep/data/loader.h>

#include <optional>
#include <utility>

namespace lockstep::train {

// A loader that is asked by step number, so that a resumed run needs no other memory of where it
// was.
template <data::MapDataset Dataset>
class EpochBatches {
 public:
  // `options.batch` rows a step over all ranks; the last step of an epoch may have fewer. Throws
  // BadInput when some rank would have no sample of its own.
  EpochBatches(Dataset dataset, const Options& options, const Group& group)
      : loader_(data::loader(checked(std::move(dataset), group),
                             {.batch_size = options.batch / group.size(),
                              .group = group,
                              .seed = static_cast<std::uint64_t>(options.seed),
                              .workers = 0})) {}

  [[nodiscard]] std::int64_t steps_per_epoch() const { return loader_.batches(); }

  // This rank's rows of step number `step`. The global batch is the same for any number of ranks.
  [[nodiscard]] Batch batch(std::int64_t step) {
    std::int64_t place = step % steps_per_epoch();
    if (step != next_ || place == 0) go_to(step / steps_per_epoch(), place);
    Batch batch = **place_;
    ++*place_;
    next_ = step + 1;
    return batch;
  }

 private:
  using Loader = data::Loader<Batch>;

  static Dataset checked(Dataset dataset, const Group& group) {
    auto samples = static_cast<std::int64_t>(dataset.size().value());
    check_input(samples >= group.size(),
                "expected a training sample for each rank, found {} samples for {} ranks", samples,
                group.size());
    return dataset;
  }

  void go_to(std::int64_t epoch, std::int64_t place) {
    place_.reset();
    range_.reset();
    data::LoaderState state = loader_.state();
    state.epoch = epoch;
    state.batches = place;
    loader_.resume(state);
    range_.emplace(loader_.epoch(epoch));
    place_.emplace(range_->begin());
  }

  Loader loader_;
  std::optional<data::Epoch<Batch>> range_;
  std::optional<data::Epoch<Batch>::Iterator> place_;
  std::int64_t next_ = -1;
};

}  // namespace lockstep::train
