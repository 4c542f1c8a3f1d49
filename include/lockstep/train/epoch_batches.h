// EpochBatches: implements Task::batch() for any dataset that is read in epochs, each in another
// order.
//
//   void load(const Options& options, const Group& group) override {
//     batches_.emplace(MyDataset(), options, group);
//   }
//   Batch batch(std::int64_t step) override { return batches_->batch(step); }
//
// Not collective; not thread-safe.
#pragma once

#include <lockstep/data/loader.h>
#include <lockstep/train/task.h>

#include <optional>
#include <utility>

#pragma GCC visibility push(default)

namespace lockstep::train {

namespace detail {
// Throws BadInput if the number of samples is unknown or less than the number of ranks.
void check_samples(std::optional<std::size_t> samples, int ranks);
}  // namespace detail

// A loader (data/loader.h) that is indexed by step number, so that a resumed run needs no loader
// state. A dataset is any type that a loader accepts: it has size() and get() or get_batch().
template <data::MapDataset Dataset>
class EpochBatches {
 public:
  // A step has `options.batch` rows over all ranks; the last step of an epoch may have fewer.
  // Throws BadInput if some rank would have no sample.
  EpochBatches(Dataset dataset, const Options& options, const Group& group)
      : loader_(data::loader(checked(std::move(dataset), group),
                             {.batch_size = options.batch,
                              .group = group,
                              .seed = static_cast<std::uint64_t>(options.seed),
                              .workers = 0,
                              .uneven = options.uneven})) {}

  // Equal on every rank.
  [[nodiscard]] std::int64_t steps_per_epoch() const { return loader_.end(); }

  // Returns this rank's rows of step `step`. The global batch is the same for any number of ranks.
  // With --uneven, a rank may have no rows in the last step of an epoch; it gets a Batch without
  // tensors then.
  [[nodiscard]] Batch batch(std::int64_t step) {
    std::int64_t place = step % steps_per_epoch();
    if (place >= loader_.batches()) return {};
    if (step != next_ || place == 0) go_to(step / steps_per_epoch(), place);
    Batch batch(**place_);
    ++*place_;
    next_ = step + 1;
    return batch;
  }

 private:
  using Rows = data::BatchOf<Dataset>;

  static Dataset checked(Dataset dataset, const Group& group) {
    detail::check_samples(dataset.size(), group.size());
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

  data::Loader<Rows> loader_;
  std::optional<data::Epoch<Rows>> range_;
  std::optional<typename data::Epoch<Rows>::Iterator> place_;
  std::int64_t next_ = -1;
};

}  // namespace lockstep::train

#pragma GCC visibility pop
