// loader(): this rank's share of a dataset, in batches, shuffled anew in each epoch.
//
//   auto loader = lockstep::data::loader(dataset, {.batch_size = 64, .group = world});
//   for (std::int64_t epoch = 0; epoch < 10; ++epoch)
//     for (auto& batch : loader.epoch(epoch)) use(batch.data, batch.target);
//
// Over all ranks, each sample is read once per epoch (sampler.h explains the handling of an uneven
// tail). The batches are the same for any number of workers. If a dataset throws in a worker, the
// exception is rethrown to the program in place of the batch. Leaving the loop early ends the
// workers; all of them have ended when the range is destroyed.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/data/batches.h>
#include <lockstep/data/loader_plan.h>
#include <lockstep/data/prefetcher.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

// The batches of one epoch: a range for a single pass in one thread. The range may outlive its
// loader.
template <class Batch>
class [[nodiscard]] Epoch {
 public:
  class Iterator {
   public:
    explicit Iterator(Epoch* epoch) : epoch_(epoch) {}
    Batch& operator*() const { return *static_cast<Batch*>(epoch_->batch_.get()); }
    Iterator& operator++() {
      epoch_->advance();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return !epoch_->batch_; }

   private:
    Epoch* epoch_;
  };

  // Returns the next batch (a Batch), or null after the last one.
  using Take = std::function<Prefetcher::Item()>;

  // `place` counts the batches handed out. After the last batch it is set to `end`, if `end` is
  // known.
  Epoch(std::shared_ptr<std::int64_t> place, std::optional<std::int64_t> end, Take take)
      : place_(std::move(place)), end_(end), take_(std::move(take)) {}

  [[nodiscard]] Iterator begin() {
    if (!batch_) advance();
    return Iterator(this);
  }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

 private:
  void advance() {
    batch_.reset();
    batch_ = take_();
    *place_ = batch_ ? *place_ + 1 : end_.value_or(*place_);
  }

  std::shared_ptr<std::int64_t> place_;
  std::optional<std::int64_t> end_;
  Take take_;
  Prefetcher::Item batch_;
};

// Not thread-safe. No function here waits for another rank.
template <class Batch>
class Loader {
 public:
  // `readers` has one entry per worker, or one for the program's thread. Use loader() instead of
  // this constructor.
  Loader(std::vector<ReadBatch<Batch>> readers, std::int64_t samples, const LoaderOptions& options)
      : plan_(samples, options),
        copies_(options.device, options.pin_memory),
        workers_(options.workers),
        ahead_(std::max(options.prefetch, options.workers)),
        readers_(std::move(readers)) {}

  // Returns the batches of an epoch: all of them or, in the first epoch after resume(), the
  // remaining ones. Starts the workers. Throws InvalidArgument if the range of an earlier call
  // still exists, because both would read through the same datasets.
  Epoch<Batch> epoch(std::int64_t number) {
    const std::int64_t begin = place_.first_of(number, "Loader");
    Order order = std::make_shared<const std::vector<std::size_t>>(plan_.order(number));
    auto batches = prefetcher(std::min(begin, plan_.batches()), order);
    place_.start(number, begin);
    return Epoch<Batch>(place_.batches(), plan_.end(),
                        [batches] { return SentBatch<Batch>::arrived(batches->take()); });
  }

  // Returns the number of batches in a whole epoch on this rank.
  [[nodiscard]] std::int64_t batches() const { return plan_.batches(); }
  // Returns the number of batches of the rank that has the most. Only with `uneven` can it exceed
  // batches(). The same on every rank.
  [[nodiscard]] std::int64_t end() const { return plan_.end(); }
  [[nodiscard]] std::int64_t samples() const { return plan_.sampler().samples(); }

  // Returns the position after the last batch that was handed out. May be called in the middle of
  // an epoch; after its loop the position is the epoch's end, which is the same on every rank.
  [[nodiscard]] LoaderState state() const {
    return plan_.state_at(place_.epoch(), *place_.batches());
  }
  // Lets the next epoch(state.epoch) begin at the saved position. Throws BadInput, and changes
  // nothing, if the state belongs to a different order of samples.
  void resume(const LoaderState& state) {
    plan_.check(state);
    place_.resume(state);
  }

 private:
  using Order = std::shared_ptr<const std::vector<std::size_t>>;

  Prefetcher::Make maker(const ReadBatch<Batch>& read, const Order& order) const {
    return [plan = plan_, copies = copies_, read, order](std::int64_t number) -> Prefetcher::Item {
      return std::make_shared<SentBatch<Batch>>(read(plan.piece(*order, number)), copies);
    };
  }

  std::shared_ptr<Prefetcher> prefetcher(std::int64_t begin, const Order& order) const {
    if (workers_ == 0)
      return std::make_shared<Prefetcher>(begin, plan_.batches(), maker(readers_.front(), order));
    std::vector<Prefetcher::Make> workers;
    for (const ReadBatch<Batch>& read : readers_) workers.push_back(maker(read, order));
    return std::make_shared<Prefetcher>(begin, plan_.batches(), std::move(workers), ahead_);
  }

  LoaderPlan plan_;
  DeviceCopies copies_;
  int workers_;
  int ahead_;  // batches that are read ahead
  std::vector<ReadBatch<Batch>> readers_;
  EpochPlace place_;
};

// Returns a loader over `dataset`, which is moved or copied in; each further worker gets a copy, as
// in LibTorch's own loader. Throws InvalidArgument for a dataset without a size, and for several
// workers over a dataset that cannot be copied.
template <MapDataset D>
[[nodiscard]] auto loader(D dataset, const LoaderOptions& options = {}) {
  const std::optional<std::size_t> size = dataset.size();
  if (!size)
    throw InvalidArgument("loader: the dataset must know its size: its size() returned no value");
  std::vector<ReadBatch<BatchOf<D>>> readers;
  for (int worker = 1; worker < options.workers; ++worker) {
    if constexpr (std::is_copy_constructible_v<D>) {
      readers.push_back(reader_of(std::make_shared<D>(dataset)));
    } else {
      throw InvalidArgument(
          "loader: expected a dataset that can be copied (or a shared_ptr to one) for several "
          "workers");
    }
  }
  readers.push_back(reader_of(std::make_shared<D>(std::move(dataset))));
  return Loader<BatchOf<D>>(std::move(readers), static_cast<std::int64_t>(*size), options);
}

// Returns a loader whose workers all read from the same `dataset`, which must allow concurrent
// reads.
template <MapDataset D>
[[nodiscard]] auto loader(std::shared_ptr<D> dataset, const LoaderOptions& options = {}) {
  const std::optional<std::size_t> size = dataset->size();
  if (!size)
    throw InvalidArgument("loader: the dataset must know its size: its size() returned no value");
  std::vector<ReadBatch<BatchOf<D>>> readers(static_cast<std::size_t>(std::max(1, options.workers)),
                                             reader_of(dataset));
  return Loader<BatchOf<D>>(std::move(readers), static_cast<std::int64_t>(*size), options);
}

}  // namespace lockstep::data

#pragma GCC visibility pop
