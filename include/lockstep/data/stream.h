// stream_loader(): this rank's share of a stream, in batches: of a dataset that hands out one
// sample after the other and may not know how many there are.
//
//   auto loader = lockstep::data::stream_loader(
//       [](std::int64_t epoch) { return Lines("text.txt"); },
//       {.batch_size = 64, .group = world, .workers = 4});
//   for (auto& batch : loader.epoch(0)) use(batch);
//
// A stream is any class with
//
//   std::optional<Sample> next()               the next sample; nothing behind the last
//   std::int64_t skip(std::int64_t count)      where it can do that faster: passes by that many,
//                                              or all that are left, and returns how many
//
// Every rank and each of its workers makes a stream of its own, and all must give the same samples
// in the same order: the loader deals them out. Sample i is rank i % ranks's, and the ranks'
// batches number n are together the samples from n * batch_size on, batch_size of them. So the
// batches of a rank are the same for any number of workers, and those of all ranks together for any
// number of ranks. A loader over an indexed dataset gives the same with `shuffle` off, but for
// samples that are repeated, and with `drop_last` for a last batch that the ranks do not divide. A
// worker skips samples of other ranks: skip() decides what many of them cost.
//
// The end: all ranks have equally many batches, though ranks do not talk. Each rank gets its own of
// the samples that are left for no whole batch. The first of these is repeated on ranks that would
// be next if the ranks divided the samples, and on ranks that have none. `drop_last` leaves these
// samples out; `uneven` repeats nothing, and a rank may then have a sample or the last batch less
// than another.
#pragma once

#include <lockstep/data/loader.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

template <class D>
concept StreamDataset = requires(D& stream) {
  { stream.next().has_value() } -> std::convertible_to<bool>;
  *stream.next();
};

template <class D>
concept SkippingStream = StreamDataset<D> && requires(D& stream, std::int64_t count) {
  { stream.skip(count) } -> std::convertible_to<std::int64_t>;
};

struct StreamOptions {
  // Samples of a batch over all ranks, at least one for each. Ranks that do not divide it have
  // shares that differ by one sample. Ranks weigh alike: a strategy averages the ranks' means, so a
  // sample of a smaller share counts more.
  std::int64_t batch_size = 1;
  Group group = Group();  // only rank() and size() are used: loaders do not talk to each other
  int workers = 1;        // threads that read; 0: the program's own thread reads when it asks
  int prefetch = 2;       // batches read ahead of the program, by each worker
  bool drop_last = false;
  bool uneven = false;
};

// Which samples of the stream are whose; pure arithmetic.
class StreamPlan {
 public:
  // InvalidArgument: an option that makes no sense, or fewer samples in a batch than ranks.
  explicit StreamPlan(const StreamOptions& options);

  // Of all ranks' batches number n: samples [n * size, (n + 1) * size).
  [[nodiscard]] std::int64_t global_batch() const { return batch_; }
  [[nodiscard]] bool is_own(std::int64_t sample) const { return sample % world_ == rank_; }
  // Rows of this rank in the last batch of a stream, if the global batch begins at sample `begin`
  // and has only `found` samples; 0: no batch. May be one more than the samples that are its own.
  [[nodiscard]] std::int64_t rows_of_last(std::int64_t begin, std::int64_t found) const;

  // As Loader::state(); the number of samples is not known, and 0.
  [[nodiscard]] LoaderState state_at(std::int64_t epoch, std::int64_t batches) const;
  // BadInput names what differs.
  void check(const LoaderState& state) const;

 private:
  std::int64_t batch_, world_, rank_;
  bool drop_last_, uneven_;
};

// One worker's way through a stream; its batches in ascending order. One thread a time.
template <StreamDataset D>
class StreamReader {
  using Sample = std::remove_cvref_t<decltype(*std::declval<D&>().next())>;

 public:
  using Batch = decltype(stacked(std::declval<std::vector<Sample>>()));

  StreamReader(D stream, StreamPlan plan) : stream_(std::move(stream)), plan_(plan) {}

  // This rank's batch of that number, which is above those that were asked for; null behind the
  // last. After an exception of the stream nobody knows where it is: it is thrown again.
  std::shared_ptr<Batch> read(std::int64_t number) {
    if (problem_) std::rethrow_exception(problem_);
    try {
      return read_on(number);
    } catch (...) {
      problem_ = std::current_exception();
      throw;
    }
  }

 private:
  std::shared_ptr<Batch> read_on(std::int64_t number) {
    const std::int64_t size = plan_.global_batch();
    const std::int64_t begin = number * size;
    if (!pass_by(begin - place_)) return nullptr;
    std::vector<Sample> own;
    std::optional<Sample> first;  // of all ranks: for those that have one fewer
    std::int64_t found = 0;
    for (; found < size; ++found) {
      const bool is_own = plan_.is_own(begin + found);
      if (!is_own && found > 0) {
        if (!pass_by(1)) break;
        continue;
      }
      std::optional<Sample> sample = take();
      if (!sample) break;
      if (found == 0) first = sample;
      if (is_own) own.push_back(std::move(*sample));
    }
    if (found < size) {
      const std::int64_t rows = plan_.rows_of_last(begin, found);
      if (rows == 0) return nullptr;
      if (rows > static_cast<std::int64_t>(own.size())) own.push_back(std::move(*first));
    }
    return std::make_shared<Batch>(stacked(std::move(own)));
  }

  // Whether there were so many.
  bool pass_by(std::int64_t count) {
    std::int64_t passed = 0;
    if (is_over_) return count == 0;
    if constexpr (SkippingStream<D>) {
      if (count > 0) passed = stream_.skip(count);
    } else {
      while (passed < count && stream_.next().has_value()) ++passed;
    }
    place_ += passed;
    is_over_ = passed < count;
    return !is_over_;
  }
  std::optional<Sample> take() {
    if (is_over_) return std::nullopt;
    std::optional<Sample> sample = stream_.next();
    is_over_ = !sample.has_value();
    if (!is_over_) ++place_;
    return sample;
  }

  D stream_;
  StreamPlan plan_;
  std::int64_t place_ = 0;  // the sample that comes next
  bool is_over_ = false;
  std::exception_ptr problem_;
};

// Belongs to one thread. Nothing here waits for another rank.
template <StreamDataset D>
class StreamLoader {
 public:
  using Batch = typename StreamReader<D>::Batch;
  using Make = std::function<D(std::int64_t epoch)>;

  StreamLoader(Make make, StreamOptions options)
      : make_(std::move(make)), plan_(options), options_(std::move(options)) {}

  // The batches of an epoch, or after resume() those that are left of the one that was resumed;
  // what was handed out before is passed by in the stream. Makes the streams here and reads them in
  // the workers. InvalidArgument when the range of an earlier call is still there. An exception of
  // a stream is thrown in place of its batch.
  Epoch<Batch> epoch(std::int64_t number) {
    const std::int64_t begin = place_.begin(number, "StreamLoader");
    auto workers = std::make_shared<std::vector<std::unique_ptr<Prefetcher>>>();
    for (int worker = 0; worker < std::max(1, options_.workers); ++worker)
      workers->push_back(start(number, begin + worker));
    auto take = [workers, next = std::size_t{0}]() mutable -> Prefetcher::Item {
      if (workers->empty()) return nullptr;
      Prefetcher::Item item = (*workers)[next]->take();
      next = (next + 1) % workers->size();
      auto batch = *static_cast<std::shared_ptr<Batch>*>(item.get());
      if (!batch) workers->clear();  // the stream's end, which all of them find
      return batch;
    };
    return Epoch<Batch>(place_.batches(), std::nullopt, std::move(take));
  }

  // The place behind the last batch that was handed out.
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
  // Batches `first`, first + workers, ...; at the end and behind it items with no batch.
  std::unique_ptr<Prefetcher> start(std::int64_t epoch, std::int64_t first) {
    auto reader = std::make_shared<StreamReader<D>>(make_(epoch), plan_);
    const std::int64_t stride = std::max(1, options_.workers);
    Prefetcher::Make make = [reader, first, stride](std::int64_t number) -> Prefetcher::Item {
      return std::make_shared<std::shared_ptr<Batch>>(reader->read(first + number * stride));
    };
    constexpr auto endless = std::numeric_limits<std::int64_t>::max();
    if (options_.workers == 0) return std::make_unique<Prefetcher>(0, endless, std::move(make));
    return std::make_unique<Prefetcher>(0, endless, std::vector<Prefetcher::Make>{std::move(make)},
                                        options_.prefetch);
  }

  Make make_;
  StreamPlan plan_;
  StreamOptions options_;
  EpochPlace place_;
};

// `make(epoch)` makes a stream at its beginning: once for each worker and epoch, in the program's
// thread.
template <class Make>
  requires StreamDataset<std::invoke_result_t<Make&, std::int64_t>>
[[nodiscard]] auto stream_loader(Make make, StreamOptions options = {}) {
  return StreamLoader<std::invoke_result_t<Make&, std::int64_t>>(std::move(make),
                                                                 std::move(options));
}

}  // namespace lockstep::data

#pragma GCC visibility pop
