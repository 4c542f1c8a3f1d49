// What the trainer does to a task's batch before it is learned from.
#pragma once

#include <lockstep/train/task.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::train {

// The batch in at most `parts` parts of equally many rows, the last of fewer where they do not
// divide.
[[nodiscard]] std::vector<Batch> micro_batches(const Batch& batch, std::int64_t parts);

// Floating-point numbers of `data` and `more` in this dtype; none: as they are.
[[nodiscard]] Batch cast_batch(Batch batch, std::optional<c10::ScalarType> dtype);

}  // namespace lockstep::train
