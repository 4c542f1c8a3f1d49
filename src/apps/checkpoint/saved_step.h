// A checkpoint of ours from tensors of other programs: saved as any other one, by
// checkpoint::save(), of a module that has these tensors under these names.
#pragma once

#include "apps/checkpoint/source.h"

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep::apps {

// 100 of RUN/step-00000100; nothing for another name.
[[nodiscard]] std::optional<std::int64_t> step_named(const std::filesystem::path& path);

// BadInput for names that no module can have, or a state of an optimizer that is none of ours;
// errors of checkpoint::save().
void save_step(const std::filesystem::path& path, const Source& source);

}  // namespace lockstep::apps
