// The names of checkpoint folders, and of the files in and beside them.
#pragma once

#include "base/format.h"

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/training_state.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::checkpoint {

// Files with tensors; each may be split into shards (shards.h).
inline constexpr const char* model_file = "model.safetensors";
inline constexpr const char* optimizer_file = "optimizer.safetensors";
inline constexpr const char* ignored_file = "ignored.safetensors";
inline constexpr const char* own_file = "own.safetensors";
inline constexpr const char* random_file = "random.safetensors";

// The index of a model hub's folder, if the model is not one model_file.
inline constexpr const char* index_file = "model.safetensors.index.json";

// All files with tensors. ignored_file exists only if a rank ignores a tensor, own_file only if a
// rank has tensors of its own.
inline constexpr std::array tensor_files{model_file, optimizer_file, ignored_file, own_file,
                                         random_file};

// Returns true for ignored_file and own_file.
constexpr bool may_be_missing(std::string_view name) {
  return name == ignored_file || name == own_file;
}

inline constexpr const char* layout_file = "layout.json";

// The file beside the checkpoint folders that contains the name of the newest one.
inline constexpr const char* latest_file = "LATEST";

// Returns the result of `read`; adds the path of the file to the front of its BadInput errors.
template <class Read>
decltype(auto) in_file(const std::filesystem::path& file, Read&& read) {
  try {
    return std::forward<Read>(read)();
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", file.string(), problem.what()));
  }
}

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
