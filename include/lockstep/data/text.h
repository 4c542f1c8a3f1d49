// Text for a language model: a file, or all chosen files below a folder, as tokens for training and
// for validation.
#pragma once

#include <lockstep/data/vocabulary.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

struct TextOptions {
  // Of the files below a folder, those whose names end so (".h", ".txt"); empty: all. A single file
  // is read in any case.
  std::vector<std::string> extensions = {};
  bool bytes = false;  // tokens are bytes instead of the text's characters
  // This one (of an earlier run) instead of a new one.
  std::optional<Vocabulary> vocabulary = std::nullopt;
  double validation = 0.1;  // the part at the end that is held back, in [0, 1)
};

struct Text {
  Vocabulary vocabulary;
  at::Tensor train;  // tokens in order; see Vocabulary::encode for the dtype
  at::Tensor validation;
};

// The file's bytes, or those of the files below the folder one behind another, sorted by their path
// (byte by byte, so that every host has the same order); links to folders are not followed.
// BadInput when there is no such file or folder, no file in it fits, there is nothing in it, it is
// a pipe or a device, or it is more than memory takes.
[[nodiscard]] std::string read_text(const std::filesystem::path& path,
                                    const std::vector<std::string>& extensions = {});

// Reads, encodes and splits: of n tokens the first int(n * (1 - validation)) are for training, as
// in nanoGPT. BadInput as above, and for a character outside the given vocabulary.
[[nodiscard]] Text load_text(const std::filesystem::path& path, const TextOptions& options = {});

}  // namespace lockstep::data

#pragma GCC visibility pop
