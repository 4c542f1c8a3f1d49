// Reports this rank's own failure to its launcher.
#pragma once

#include <string_view>

namespace lockstep::rank_env {

// Writes the text into the error file that the launcher named (TORCHELASTIC_ERROR_FILE), in
// torchrun's format. The report on this rank then has the reason even if another rank printed it
// for all. Replaces any earlier text. Does nothing if there is no such file; never throws.
void record_own_failure(std::string_view text) noexcept;

}  // namespace lockstep::rank_env
