// stream_loader(): this rank's share of a stream, in batches. A stream is a dataset that returns
// one sample after the other and may not know its size.
//
//   auto loader = lockstep::data::stream_loader(
//       [](std::int64_t epoch) { return Lines("text.txt"); },
//       {.batch_size = 64, .group = world, .workers = 4});
//   for (auto& batch : loader.epoch(0)) use(batch);
//
// A stream is any class with
//
//   std::optional<Sample> next()               returns the next sample; std::nullopt after the last
//   std::int64_t skip(std::int64_t count)      optional, if faster than next(): skips `count`
//                                              samples or all that are left; returns how many
//
// Every rank and each of its workers makes its own stream, and all streams must return the same
// samples in the same order: the loader distributes them. Sample i belongs to rank i % ranks. Batch
// n of all ranks together consists of the batch_size samples from n * batch_size on. The batches of
// a rank are therefore the same for any number of workers, and the batches of all ranks together
// are the same for any number of ranks. A loader over an indexed dataset with `shuffle` off gives
// the same batches, except for repeated samples. A worker skips the samples of other ranks, so with
// many ranks the cost depends on skip().
//
// The end: all ranks have the same number of batches, although they do not communicate. The samples
// of an incomplete last batch go to the ranks that own them. The number of all samples is rounded
// up to a multiple of the number of ranks by repeating the first sample of that batch; a rank that
// still has no sample reads that one, too. `drop_last` leaves the incomplete batch out. `uneven`
// repeats no sample; a rank may then have one sample or one batch less than another.
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
  // Number of samples in a batch over all ranks, at least one per rank. If it is not divisible by
  // the number of ranks, the ranks' shares differ by one sample. Each rank has the same weight: a
  // strategy averages the ranks' means, so a sample in a smaller share counts more.
  std::int64_t batch_size = 1;
  Group group = Group();  // only rank() and size() are used: loaders do not communicate
  int workers = 1;        // threads that read; with 0 the program's own thread reads
  int prefetch = 2;       // batches that each worker reads ahead of the program
  // As in LoaderOptions.
  bool pin_memory = false;
  std::optional<c10::Device> device = std::nullopt;
  bool drop_last = false;
  bool uneven = false;
};

// Assigns the samples of the stream to ranks and batches; pure arithmetic.
class StreamPlan {
 public:
  // Throws InvalidArgument for an invalid option or a batch size smaller than the number of ranks.
  explicit StreamPlan(const StreamOptions& options);

  // Returns the size of a global batch: batch n of all ranks is samples [n * size, (n + 1) * size).
  [[nodiscard]] std::int64_t global_batch() const { return batch_; }
  [[nodiscard]] bool is_own(std::int64_t sample) const { return sample % world_ == rank_; }
  // Returns the number of rows of this rank in the last batch of a stream, if the global batch
  // begins at sample `begin` and has only `found` samples. Returns 0 if there is no such batch. The
  // result may be one more than this rank's samples in the batch.
  [[nodiscard]] std::int64_t rows_of_last(std::int64_t begin, std::int64_t found) const;

  // Same as Loader::state(), except that `samples` is 0 because the number is unknown.
  [[nodiscard]] LoaderState state_at(std::int64_t epoch, std::int64_t batches) const;
  // Throws BadInput if `state` does not match this plan; the message names the difference.
  void check(const LoaderState& state) const;

 private:
  std::int64_t batch_, world_, rank_;
  bool drop_last_, uneven_;
};

// Reads one worker's batches from a stream, in ascending order. Not thread-safe.
template <StreamDataset D>
class StreamReader {
  using Sample = std::remove_cvref_t<decltype(*std::declval<D&>().next())>;

 public:
  using Batch = decltype(stacked(std::declval<std::vector<Sample>>()));

  StreamReader(D stream, StreamPlan plan) : stream_(std::move(stream)), plan_(plan) {}

  // Returns this rank's batch with the given number, or null after the last one. Numbers must
  // ascend from call to call. After an exception of the stream its position is unknown, so every
  // later call rethrows that exception.
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
    // first sample of the global batch: repeated on ranks that have one sample fewer
    std::optional<Sample> first;
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

  // Skips `count` samples. Returns false if the stream ended before.
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
  std::int64_t place_ = 0;  // number of the next sample
  bool is_over_ = false;
  std::exception_ptr problem_;
};

// Not thread-safe. No function here waits for another rank.
template <StreamDataset D>
class StreamLoader {
 public:
  using Batch = typename StreamReader<D>::Batch;
  using Make = std::function<D(std::int64_t epoch)>;

  StreamLoader(Make make, const StreamOptions& options)
      : make_(std::move(make)),
        plan_(options),
        copies_(options.device, options.pin_memory),
        workers_(options.workers),
        prefetch_(options.prefetch) {}

  // Returns the batches of an epoch: all of them or, in the first epoch after resume(), the
  // remaining ones; the stream skips the samples that were already handed out. Makes the streams
  // here and reads them in the workers. Throws InvalidArgument if the range of an earlier call
  // still exists. An exception of a stream is thrown in place of its batch.
  Epoch<Batch> epoch(std::int64_t number) {
    const std::int64_t begin = place_.first_of(number, "StreamLoader");
    auto workers = std::make_shared<Workers>();
    for (int worker = 0; worker < std::max(1, workers_); ++worker)
      workers->all.push_back(start(number, begin + worker));
    auto take = [workers, next = std::size_t{0}]() mutable -> Prefetcher::Item {
      if (workers->all.empty()) return nullptr;
      Prefetcher::Item item = workers->all[next]->take();
      next = (next + 1) % workers->all.size();
      auto sent = *static_cast<std::shared_ptr<SentBatch<Batch>>*>(item.get());
      if (!sent) workers->end();  // the end of the stream, which is the same for all workers
      return SentBatch<Batch>::arrived(sent);
    };
    place_.start(number, begin);
    return Epoch<Batch>(place_.batches(), std::nullopt, std::move(take));
  }

  // Returns the position after the last batch that was handed out.
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
  // The workers of an epoch, which all read at the same time.
  struct Workers {
    std::vector<std::unique_ptr<Prefetcher>> all;

    Workers() = default;
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;
    ~Workers() { end(); }
    // Stops all before it waits for the first: this takes as long as the slowest of them.
    void end() {
      for (const auto& worker : all) worker->request_stop();
      all.clear();
    }
  };

  // Starts a worker for the batches `first`, first + workers, ...; items after the end hold no
  // batch.
  std::unique_ptr<Prefetcher> start(std::int64_t epoch, std::int64_t first) {
    auto reader = std::make_shared<StreamReader<D>>(make_(epoch), plan_);
    const std::int64_t stride = std::max(1, workers_);
    Prefetcher::Make make = [reader, copies = copies_, first,
                             stride](std::int64_t number) -> Prefetcher::Item {
      auto sent = std::make_shared<std::shared_ptr<SentBatch<Batch>>>();
      if (const std::shared_ptr<Batch> batch = reader->read(first + number * stride))
        *sent = std::make_shared<SentBatch<Batch>>(std::move(*batch), copies);
      return sent;
    };
    constexpr auto endless = std::numeric_limits<std::int64_t>::max();
    if (workers_ == 0) return std::make_unique<Prefetcher>(0, endless, std::move(make));
    return std::make_unique<Prefetcher>(0, endless, std::vector<Prefetcher::Make>{std::move(make)},
                                        prefetch_);
  }

  Make make_;
  StreamPlan plan_;
  DeviceCopies copies_;
  int workers_;
  int prefetch_;
  EpochPlace place_;
};

// Returns a stream loader. `make(epoch)` must return a stream at its beginning; it is called once
// per worker and epoch, in the program's thread.
template <class Make>
  requires StreamDataset<std::invoke_result_t<Make&, std::int64_t>>
[[nodiscard]] auto stream_loader(Make make, const StreamOptions& options = {}) {
  return StreamLoader<std::invoke_result_t<Make&, std::int64_t>>(std::move(make), options);
}

}  // namespace lockstep::data

#pragma GCC visibility pop
