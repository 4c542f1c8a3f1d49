// The names of checkpoint folders.
#pragma once

#include <lockstep/checkpoint/training_state.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::checkpoint {

// The step in a checkpoint folder's name, or -1 for any other name.
[[nodiscard]] std::int64_t step_of(const std::filesystem::path& folder);

// What the names of checkpoint folders begin with.
inline constexpr const char* folder_prefix = "step-";

// Never the same twice: "RANDOM".
[[nodiscard]] std::string random_word();
// ".NAME.RANDOM.partial": what NAME is called while it is being written.
[[nodiscard]] std::string partial_name(const std::string& name, const std::string& random);

// Removes what killed runs left in a folder of what they were writing: files and folders whose
// names would have begun with `prefix`.
void remove_partial(const std::filesystem::path& folder, const std::string& prefix);
// Removes all but the newest `keep` checkpoints; 0 keeps all.
void remove_all_but(const std::filesystem::path& out, std::int64_t keep);

}  // namespace lockstep::checkpoint
