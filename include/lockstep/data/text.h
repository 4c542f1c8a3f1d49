// Text for a language model, split into tokens for training and for validation. The source is a
// file, or all selected files below a folder.
#pragma once

#include <lockstep/data/tokenizer.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

struct TextOptions {
  // Suffixes (".h", ".txt") that select the files below a folder; if empty, all files are read. A
  // single file is read whatever its name.
  std::vector<std::string> extensions = {};
  bool bytes = false;  // tokens are bytes instead of characters
  // The vocabulary of an earlier run, to be used instead of a new one.
  std::optional<Vocabulary> vocabulary = std::nullopt;
  double validation = 0.1;  // fraction at the end that is held back, in [0, 1)
};

struct Text {
  Vocabulary vocabulary;
  at::Tensor train;  // in order; see Vocabulary::encode for the dtype
  at::Tensor validation;
};

// Returns the bytes of the file, or of the files below the folder one after the other, sorted by
// path (byte by byte, so that every host has the same order). Links to folders are not followed.
// Throws BadInput if the file or folder does not exist, no file in the folder matches, the content
// is empty or does not fit into memory, or the path is a pipe or a device.
[[nodiscard]] std::string read_text(const std::filesystem::path& path,
                                    const std::vector<std::string>& extensions = {});

// Reads, encodes and splits the text: the first int(n * (1 - validation)) of n tokens are for
// training, as in nanoGPT. Throws BadInput as read_text() does, and for a character that is not in
// the given vocabulary.
[[nodiscard]] Text load_text(const std::filesystem::path& path, const TextOptions& options = {});

}  // namespace lockstep::data

#pragma GCC visibility pop
