// What the trainer does to a task's batch before it is learned from.
#pragma once

#include <lockstep/parallel/handle.h>
#include <lockstep/train/task.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace lockstep::train {

// The batch in at most `parts` parts of equally many rows, the last of fewer where they do not
// divide.
[[nodiscard]] std::vector<Batch> micro_batches(const Batch& batch, std::int64_t parts);

// Calls `backward` for each micro-batch of at most `parts`, with its part of the batch's rows; all
// but the last inside no_sync(). Returns the sum of the results.
[[nodiscard]] double accumulate(
    Handle& handle, const Batch& batch, std::int64_t parts,
    const std::function<double(const Batch& part, double share)>& backward);

// Floating-point numbers of `data` and `more` in this dtype; none: as they are.
[[nodiscard]] Batch cast_batch(Batch batch, std::optional<c10::ScalarType> dtype);

}  // namespace lockstep::train
