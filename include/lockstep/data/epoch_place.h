// EpochPlace: the position of a loader: its epoch and the number of batches it has handed out in
// that epoch. Not thread-safe.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/data/loader_state.h>

#include <cstdint>
#include <memory>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::data {

class EpochPlace {
 public:
  // Starts the range of an epoch and returns the number of its first batch: 0, or the next batch
  // after resume(). Throws InvalidArgument while the range of an earlier call exists, because both
  // would read through the same datasets.
  std::int64_t begin(std::int64_t epoch, const char* loader) {
    if (batches_.use_count() > 1)
      throw InvalidArgument(std::string(loader) +
                            "::epoch: expected the range of the epoch before to be gone, found it "
                            "still in use");
    const std::int64_t first = is_resumed_ && epoch == epoch_ ? *batches_ : 0;
    is_resumed_ = false;
    epoch_ = epoch;
    *batches_ = first;
    return first;
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
