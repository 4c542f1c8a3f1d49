#include <lockstep/train/epoch_batches.h>

#include "base/check.h"
#include "base/counted.h"

namespace lockstep::train::detail {

void check_samples(std::optional<std::size_t> samples, int ranks) {
  check_input(samples.has_value(), "expected a training set that knows its size, found none");
  check_input(*samples >= static_cast<std::size_t>(ranks),
              "expected a training sample for each rank, found {} for {}",
              counted(static_cast<std::int64_t>(*samples), "sample"), counted(ranks, "rank"));
}

}  // namespace lockstep::train::detail
