// The position of a loader, exact to the batch and small enough for a checkpoint's header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::data {

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

  // Converts to and from text such as "epoch=3 batches=17 seed=42 samples=60000 global_batch=64
  // shuffle=1 drop_last=0". from_text() throws BadInput if a field is missing, unknown or not a
  // number; the message names the field.
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] static LoaderState from_text(std::string_view text);

  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
