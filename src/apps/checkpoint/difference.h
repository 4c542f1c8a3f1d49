// In what two checkpoints, or two files of tensors, differ.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::apps {

struct Difference {
  std::vector<std::string> lines;  // one for each tensor that is not the same, or is in one only
  std::size_t tensors = 0;         // that either has
};

// Reads some megabytes at a time. BadInput and SystemError name the file that cannot be read.
[[nodiscard]] Difference difference_of(const std::filesystem::path& one,
                                       const std::filesystem::path& other);

}  // namespace lockstep::apps
