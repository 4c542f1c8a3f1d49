// LoaderPlan: the part of a loader that does not depend on the type of a batch: the indices of
// batch n of an epoch, the position of the loader, and the fields that a saved state must match.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/data/sampler.h>

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

// The position of a loader, exact to the batch and small enough for a checkpoint's header.
//
// The first two fields are the position; the other fields identify the order of samples, and must
// be the same on resume. A position is valid for any number of ranks with the same global batch
// (the batches of all ranks together).
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t batches = 0;  // handed out in this epoch; with `uneven` some ranks may have one less
  std::uint64_t seed = 0;
  std::int64_t samples = 0;
  std::int64_t global_batch = 0;
  bool shuffle = true;
  bool drop_last = false;

  // Converts to and from JSON such as {"epoch":3,"batches":17,"seed":42,"samples":60000,
  // "global_batch":64,"shuffle":true,"drop_last":false}. from_text() throws BadInput if a field is
  // missing, unknown or of another type; the message names the field.
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] static LoaderState from_text(std::string_view text);

  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

struct LoaderOptions {
  // Number of samples in a batch over all ranks, at least one per rank. If it is not divisible by
  // the number of ranks, the ranks' shares differ by one sample. Each rank has the same weight: a
  // strategy averages the ranks' means, so a sample in a smaller share counts more.
  std::int64_t batch_size = 1;
  Group group = Group();   // only rank() and size() are used: loaders do not communicate
  std::uint64_t seed = 0;  // the same on every rank
  int workers = 1;         // threads that read; with 0 the program's own thread reads
  // Batches that all workers together read ahead of the program; at least one for each worker.
  int prefetch = 2;
  // Puts the batches into pinned host memory, from which a device can copy without blocking
  // (tensor.to(device, dtype, true)). No effect in a process without an accelerator.
  bool pin_memory = false;
  // If not the CPU: the workers copy the batches to this device, through pinned memory and on a
  // stream of the loader's own, and a batch is handed out after the current stream of the program
  // was ordered after its copy (batches.h). Use the batch on that stream.
  std::optional<c10::Device> device = std::nullopt;
  bool shuffle = true;  // draw a new order in each epoch
  // How to handle a tail that does not make a full batch on every rank. By default it is padded as
  // in Sampler, and the last batch of an epoch is smaller.
  bool drop_last = false;  // leave the tail out: every batch is full
  bool uneven = false;     // read each sample exactly once: ranks may differ by one sample or batch
};

class LoaderPlan {
 public:
  // Throws InvalidArgument for an invalid option or a batch size smaller than the number of ranks.
  // Throws BadInput if there are no samples, or if drop_last leaves no batch.
  LoaderPlan(std::int64_t samples, const LoaderOptions& options);

  // Returns the number of batches in an epoch on this rank.
  [[nodiscard]] std::int64_t batches() const { return batches_; }
  // Returns the position after an epoch's last batch. The position is the same on every rank, and
  // for any number of ranks with the same global batch. With `uneven`, a rank may have one batch
  // less.
  [[nodiscard]] std::int64_t end() const { return end_; }
  [[nodiscard]] const Sampler& sampler() const { return sampler_; }

  // Returns this rank's samples in the order of epoch `epoch`; batch n is the n-th piece of the
  // order.
  [[nodiscard]] std::vector<std::size_t> order(std::int64_t epoch) const {
    return sampler_.order(epoch);
  }
  [[nodiscard]] c10::ArrayRef<std::size_t> piece(const std::vector<std::size_t>& order,
                                                 std::int64_t batch) const;

  // Returns the state of a loader with this plan at the given position.
  [[nodiscard]] LoaderState state_at(std::int64_t epoch, std::int64_t batches) const;
  // Throws BadInput if `state` does not match this plan or its position is after end(). The message
  // names the first field that differs.
  void check(const LoaderState& state) const;

 private:
  // Returns the index of this rank's first sample that belongs to batch `batch` or a later one.
  [[nodiscard]] std::int64_t first_of(std::int64_t batch) const;

  Sampler sampler_;
  std::int64_t batch_size_;  // over all ranks
  bool drop_last_;
  std::int64_t end_;
  std::int64_t batches_;
};

// EpochPlace: the position of a loader: its epoch and the number of batches it has handed out in
// that epoch. Not thread-safe. Not copyable: a copy would share the counter.
class EpochPlace {
 public:
  EpochPlace() = default;
  EpochPlace(EpochPlace&&) = default;
  EpochPlace& operator=(EpochPlace&&) = default;

  // Returns the number of the first batch of an epoch: 0, or the next batch after resume(). Throws
  // InvalidArgument while the range of an earlier epoch exists, because both would read through the
  // same datasets.
  [[nodiscard]] std::int64_t first_of(std::int64_t epoch, const char* loader) const {
    if (batches_.use_count() > 1)
      throw InvalidArgument(std::string(loader) +
                            "::epoch: expected the range of the epoch before to be gone, found it "
                            "still in use");
    return is_resumed_ && epoch == epoch_ ? *batches_ : 0;
  }
  // Starts the range of an epoch at first_of(). Call it after everything that may throw, so that a
  // resumed position is not lost with an exception.
  void start(std::int64_t epoch, std::int64_t first) {
    is_resumed_ = false;
    epoch_ = epoch;
    *batches_ = first;
  }
  // Continues at the position in `state`, which the caller has already validated.
  void resume(const LoaderState& state) {
    epoch_ = state.epoch;
    *batches_ = state.batches;
    is_resumed_ = true;
  }

  [[nodiscard]] std::int64_t epoch() const { return epoch_; }
  // Number of batches handed out in epoch(). The range of the epoch shares this counter and
  // increments it.
  [[nodiscard]] const std::shared_ptr<std::int64_t>& batches() const { return batches_; }

 private:
  std::int64_t epoch_ = 0;
  std::shared_ptr<std::int64_t> batches_ = std::make_shared<std::int64_t>(0);
  bool is_resumed_ = false;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
