// Where a loader stands: small enough for a checkpoint's header, exact to the batch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::data {

// The first two fields are the place; the others say which order that place is in, and must be the
// same when it is resumed. A place holds for any number of ranks with the same global batch (the
// batches of all ranks together).
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t batches = 0;  // handed out in this epoch on each rank that has so many (`uneven`)
  std::uint64_t seed = 0;
  std::int64_t samples = 0;
  std::int64_t global_batch = 0;
  bool shuffle = true;
  bool drop_last = false;

  // "epoch=3 batches=17 seed=42 samples=60000 global_batch=64 shuffle=1 drop_last=0", and back.
  // BadInput names a field that is missing, unknown or not a number.
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] static LoaderState from_text(std::string_view text);

  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
