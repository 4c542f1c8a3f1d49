// What a rank says to its launcher about its own failure, besides what it prints.
#pragma once

#include <string_view>

namespace lockstep::rank_env {

// Writes the text into the error file that the launcher has named (TORCHELASTIC_ERROR_FILE), in
// torchrun's format, so that a report on this rank has the reason, also when another rank printed
// it for all. Replaces what the rank has written before. Does nothing without such a file; never
// throws.
void record_own_failure(std::string_view text) noexcept;

}  // namespace lockstep::rank_env
