// The samples that a rank reads in an epoch, in their order. The indices equal those of Python's
// torch.utils.data.DistributedSampler (torch/utils/data/distributed.py).
//
// All samples are put in order (shuffled by torch.randperm with a generator seeded by seed + epoch,
// or unshuffled), the tail is made even over the ranks, and rank r reads the positions r, r +
// world, r + 2 * world, ... A batch of all ranks together is therefore a contiguous piece of the
// order, and the same piece for any number of ranks with the same global batch.
#pragma once

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

struct SamplerOptions {
  int rank = 0;
  int world = 1;
  std::uint64_t seed = 0;
  bool shuffle = true;
  // How to handle a tail that the ranks cannot share evenly. By default it is padded with the first
  // samples of the order, so that every rank reads the same number; with fewer samples than ranks
  // they are repeated several times.
  bool drop_last = false;  // leave the tail out
  bool uneven = false;  // the first ranks read the tail, once; Python's sampler has no such option
};

// A value type; any thread may read it. order() computes the order of an epoch on each call.
class Sampler {
 public:
  // Throws InvalidArgument for a rank outside of the world, a negative number of samples, or
  // drop_last together with uneven.
  explicit Sampler(std::int64_t samples, SamplerOptions options = {});

  // Returns the number of samples of this rank per epoch. With `uneven`, it may differ by one
  // between ranks.
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] const SamplerOptions& options() const { return options_; }

  // Returns this rank's indices, size() of them. Not collective.
  [[nodiscard]] std::vector<std::size_t> order(std::int64_t epoch) const;

 private:
  std::int64_t samples_;
  SamplerOptions options_;
  std::int64_t size_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
