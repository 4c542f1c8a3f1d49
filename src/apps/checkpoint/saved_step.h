// Writes a checkpoint of ours from tensors of other programs. It calls checkpoint::save() for a
// module that has these tensors under these names.
#pragma once

#include "apps/checkpoint/source.h"

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep::apps {

// Returns 100 for RUN/step-00000100; std::nullopt for another name.
[[nodiscard]] std::optional<std::int64_t> step_named(const std::filesystem::path& path);

// Throws BadInput for names that a module cannot have, or for the state of an unsupported
// optimizer, and errors of checkpoint::save().
void save_step(const std::filesystem::path& path, const Source& source);

}  // namespace lockstep::apps
