// Which samples a rank reads in an epoch, and in which order: index for index that of Python's
// torch.utils.data.DistributedSampler (torch/utils/data/distributed.py).
//
// All samples are put in order (shuffled by torch.randperm with a generator seeded by seed + epoch,
// or as they are), the tail is made even over the ranks, and rank r takes the places r, r + world,
// r + 2 * world, ... So a batch of every rank together is a contiguous piece of the order, and the
// same piece for any number of ranks with the same batch in all.
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
  // What happens to a tail that the ranks cannot share evenly: by default it is padded with the
  // first samples of the order (over and over, where there are fewer samples than ranks), so that
  // every rank reads equally many.
  bool drop_last = false;  // left out
  bool uneven = false;     // read once, by the first ranks; Python's has no such option
};

// A value that any thread may read. It holds no order: that of an epoch is made when it is asked
// for.
class Sampler {
 public:
  // InvalidArgument: a rank outside the world, a negative number of samples, drop_last with uneven.
  explicit Sampler(std::int64_t samples, SamplerOptions options = {});

  // Samples of this rank in each epoch; with `uneven` it may differ by one from another rank's.
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] const SamplerOptions& options() const { return options_; }

  // This rank's indices, size() of them. Local: talks to no other rank.
  [[nodiscard]] std::vector<std::size_t> order(std::int64_t epoch) const;

 private:
  std::int64_t samples_;
  SamplerOptions options_;
  std::int64_t size_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
