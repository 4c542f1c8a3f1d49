// Comparison of two checkpoints, or of two files of tensors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::apps {

struct Difference {
  std::vector<std::string> lines;  // one per tensor that differs, or that only one side has
  std::size_t tensors = 0;         // number of tensors on either side
};

// Compares two checkpoints or files, reading some megabytes at a time. BadInput and SystemError
// name the file that cannot be read.
[[nodiscard]] Difference difference_of(const std::filesystem::path& one,
                                       const std::filesystem::path& other);

}  // namespace lockstep::apps
