// LoaderPlan: the part of a loader that knows nothing of what a batch is: which indices make batch
// number n of an epoch, where the program stands, and what a saved state must agree with.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/data/loader_state.h>
#include <lockstep/data/sampler.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

struct LoaderOptions {
  // Samples of a batch over all ranks, at least one for each. Ranks that do not divide it have
  // shares that differ by one sample. Ranks weigh alike: a strategy averages the ranks' means, so a
  // sample of a smaller share counts more.
  std::int64_t batch_size = 1;
  Group group = Group();   // only rank() and size() are used: loaders do not talk to each other
  std::uint64_t seed = 0;  // the same on every rank
  int workers = 1;         // threads that read; 0: the program's own thread reads when it asks
  int prefetch = 2;        // batches read ahead of the program, by all workers together
  bool shuffle = true;     // another order each epoch
  // What happens to a tail that is no whole batch on every rank: by default ranks are made even by
  // padding, as in Sampler, and the last batch of an epoch is smaller.
  bool drop_last = false;  // left out: every batch is whole
  bool uneven = false;     // each sample exactly once: ranks may differ by one sample or batch
};

class LoaderPlan {
 public:
  // InvalidArgument: an option that makes no sense, or fewer samples in a batch than ranks.
  // BadInput: no sample, or no batch left by drop_last.
  LoaderPlan(std::int64_t samples, const LoaderOptions& options);

  // Batches of an epoch on this rank.
  [[nodiscard]] std::int64_t batches() const { return batches_; }
  // The place behind an epoch's last batch: the same on every rank, and for any number of ranks
  // with the same global batch. With `uneven` a rank may have one batch less.
  [[nodiscard]] std::int64_t end() const { return end_; }
  [[nodiscard]] const Sampler& sampler() const { return sampler_; }

  // This rank's samples in the order of epoch `epoch`; batch n is the n-th piece of it.
  [[nodiscard]] std::vector<std::size_t> order(std::int64_t epoch) const {
    return sampler_.order(epoch);
  }
  [[nodiscard]] c10::ArrayRef<std::size_t> piece(const std::vector<std::size_t>& order,
                                                 std::int64_t batch) const;

  // The state with this plan's own fields, at a place.
  [[nodiscard]] LoaderState state_at(std::int64_t epoch, std::int64_t batches) const;
  // BadInput names the first field in which `state` differs from this plan, or a place behind
  // end().
  void check(const LoaderState& state) const;

 private:
  // The first of this rank's samples that are in batch `batch` or behind it.
  [[nodiscard]] std::int64_t first_of(std::int64_t batch) const;

  Sampler sampler_;
  std::int64_t batch_size_;  // of all ranks
  std::int64_t end_;
  std::int64_t batches_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
