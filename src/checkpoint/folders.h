// The names of checkpoint folders.
#pragma once

#include <lockstep/checkpoint/training_state.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
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

// The NAME in such a name, or nothing where it is none.
[[nodiscard]] std::string named_in_partial(const std::string& partial);

// Removes what killed runs left in a folder of what they were writing, where `is_ours` holds of the
// NAME and that was not changed for `least_age`.
void remove_partial(const std::filesystem::path& folder,
                    const std::function<bool(const std::string&)>& is_ours,
                    std::chrono::hours least_age);
// Makes the file LATEST name the newest checkpoint there is, for programs that do not look through
// names; without a checkpoint it goes. SystemError.
void point_latest(const std::filesystem::path& out);
void point_latest_quietly(const std::filesystem::path& out);
// Removes all but the newest `keep` checkpoints; 0 keeps all. None is ever there in part under its
// own name.
void remove_all_but(const std::filesystem::path& out, std::int64_t keep);

}  // namespace lockstep::checkpoint
