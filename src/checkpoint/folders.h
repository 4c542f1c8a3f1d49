// The names of checkpoint folders.
#pragma once

#include <lockstep/checkpoint/training_state.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace lockstep::checkpoint {

// Returns the step in a checkpoint folder's name, or -1 for any other name.
[[nodiscard]] std::int64_t step_of(const std::filesystem::path& folder);

// The prefix of checkpoint folders' names.
inline constexpr const char* folder_prefix = "step-";

// Returns a new random word: "RANDOM".
[[nodiscard]] std::string random_word();
// Returns the name that NAME has while it is being written: ".NAME.RANDOM.partial".
[[nodiscard]] std::string partial_name(const std::string& name, const std::string& random);

// Returns the NAME in a partial name, or an empty string for any other name.
[[nodiscard]] std::string named_in_partial(const std::string& partial);

// Removes partial files in `folder` that killed runs left behind, if `is_ours(NAME)` is true and
// they were not changed for `least_age`.
void remove_partial(const std::filesystem::path& folder,
                    const std::function<bool(const std::string&)>& is_ours,
                    std::chrono::hours least_age);
// Updates the file LATEST to name the newest checkpoint, for programs that do not list the folders;
// removes it if there is no checkpoint. Throws SystemError.
void point_latest(const std::filesystem::path& out);
void point_latest_quietly(const std::filesystem::path& out);
// Removes all but the newest `keep` checkpoints; 0 keeps all. A checkpoint is never partially
// present under its own name.
void remove_all_but(const std::filesystem::path& out, std::int64_t keep);

}  // namespace lockstep::checkpoint
