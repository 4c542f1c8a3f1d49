// loader(): this rank's share of a dataset, in batches, in another order each epoch.
//
//   auto loader = lockstep::data::loader(dataset, {.batch_size = 64, .group = world});
//   for (std::int64_t epoch = 0; epoch < 10; ++epoch)
//     for (auto& batch : loader.epoch(epoch)) use(batch.data, batch.target);
//
// Each sample is read once an epoch over all ranks (sampler.h says what becomes of an uneven tail).
// The batches are the same for any number of workers. An exception of a dataset in a worker is
// rethrown to the program in place of its batch. Leaving the loop early ends the workers; all have
// ended when the range is destroyed.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/data/batches.h>
#include <lockstep/data/epoch_place.h>
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

// The batches of one epoch: a range to go through once, in one thread. It may outlive its loader.
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

  // The next batch, a Batch; null when there are no more.
  using Take = std::function<Prefetcher::Item()>;

  // `place` counts the batches handed out, and is `end` when there are no more, where that is
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

// Belongs to one thread. Nothing here waits for another rank.
template <class Batch>
class Loader {
 public:
  // One reader for each worker, or one for the program's thread. Use loader() instead.
  Loader(std::vector<ReadBatch<Batch>> readers, std::int64_t samples, LoaderOptions options)
      : plan_(samples, options), options_(std::move(options)), readers_(std::move(readers)) {}

  // The batches of an epoch: all of them, or after resume() those that are left of the epoch that
  // was resumed. Starts the workers. InvalidArgument when the range of an earlier call is still
  // there: both would read through the same datasets.
  Epoch<Batch> epoch(std::int64_t number) {
    const std::int64_t begin = place_.begin(number, "Loader");
    Order order = std::make_shared<const std::vector<std::size_t>>(plan_.order(number));
    auto batches = prefetcher(std::min(begin, plan_.batches()), order);
    return Epoch<Batch>(place_.batches(), plan_.end(), [batches] { return batches->take(); });
  }

  // Batches of a whole epoch on this rank.
  [[nodiscard]] std::int64_t batches() const { return plan_.batches(); }
  // Of the rank that has most, with `uneven`: the same on every rank.
  [[nodiscard]] std::int64_t end() const { return plan_.end(); }
  [[nodiscard]] std::int64_t samples() const { return plan_.sampler().samples(); }

  // The place behind the last batch that was handed out, also in the middle of a loop over an
  // epoch; after the loop, the epoch's end, the same on every rank.
  [[nodiscard]] LoaderState state() const {
    return plan_.state_at(place_.epoch(), *place_.batches());
  }
  // The next epoch(state.epoch) begins at the saved place. BadInput, and nothing changed, when the
  // state is that of another order.
  void resume(const LoaderState& state) {
    plan_.check(state);
    place_.resume(state);
  }

 private:
  using Order = std::shared_ptr<const std::vector<std::size_t>>;

  Prefetcher::Make maker(const ReadBatch<Batch>& read, const Order& order) const {
    return [plan = plan_, read, order](std::int64_t number) -> Prefetcher::Item {
      return std::make_shared<Batch>(read(plan.piece(*order, number)));
    };
  }

  std::shared_ptr<Prefetcher> prefetcher(std::int64_t begin, const Order& order) const {
    if (options_.workers == 0)
      return std::make_shared<Prefetcher>(begin, plan_.batches(), maker(readers_.front(), order));
    std::vector<Prefetcher::Make> workers;
    for (const ReadBatch<Batch>& read : readers_) workers.push_back(maker(read, order));
    return std::make_shared<Prefetcher>(begin, plan_.batches(), std::move(workers),
                                        options_.prefetch);
  }

  LoaderPlan plan_;
  LoaderOptions options_;
  std::vector<ReadBatch<Batch>> readers_;
  EpochPlace place_;
};

// A loader over `dataset`, which is moved or copied in; each further worker gets a copy, as in
// LibTorch's own loader. InvalidArgument for a dataset without a size, or for several workers over
// one that cannot be copied.
template <MapDataset D>
[[nodiscard]] auto loader(D dataset, LoaderOptions options = {}) {
  const std::optional<std::size_t> size = dataset.size();
  if (!size)
    throw InvalidArgument(
        "loader: expected a dataset that knows its size, found one that does not");
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
  return Loader<BatchOf<D>>(std::move(readers), static_cast<std::int64_t>(*size),
                            std::move(options));
}

// A loader whose workers all read from the one `dataset`, which must allow that.
template <MapDataset D>
[[nodiscard]] auto loader(std::shared_ptr<D> dataset, LoaderOptions options = {}) {
  const std::optional<std::size_t> size = dataset->size();
  if (!size)
    throw InvalidArgument(
        "loader: expected a dataset that knows its size, found one that does not");
  std::vector<ReadBatch<BatchOf<D>>> readers(static_cast<std::size_t>(std::max(1, options.workers)),
                                             reader_of(dataset));
  return Loader<BatchOf<D>>(std::move(readers), static_cast<std::int64_t>(*size),
                            std::move(options));
}

}  // namespace lockstep::data

#pragma GCC visibility pop
