// The best model of a run so far. It lies in best.safetensors, whose metadata say how good it is
// and of which step: what cannot tear from the model itself.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/group.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>

namespace lockstep::train {

struct Best {
  double val_loss = std::numeric_limits<double>::infinity();
  std::int64_t step = -1;  // -1: there is none yet

  // Takes one evaluation; true when it is a new best. NaN never is.
  bool update(double found_loss, std::int64_t found_step) {
    if (!(found_loss < val_loss)) return false;
    val_loss = found_loss;
    step = found_step;
    return true;
  }
};

// Losses on other data, or on another part of it, cannot be compared: the entries of the metadata
// that must be equal for it.
[[nodiscard]] checkpoint::Metadata basis_of(const std::string& data_fingerprint,
                                            std::optional<std::int64_t> eval_batches);

// What the file says. One that is not there, cannot be read, or has another basis holds no best:
// the next evaluation makes it anew. Local.
[[nodiscard]] Best read_best(const std::filesystem::path& file, const checkpoint::Metadata& basis);

// Collective: rank 0's on every rank.
[[nodiscard]] Best share_best(Group& group, const Best& own);

}  // namespace lockstep::train
