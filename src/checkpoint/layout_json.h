// layout.json: its text, and back.
#pragma once

#include "checkpoint/file_part.h"

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/layout/mesh_layout.h>

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

struct LayoutJson {
  TrainingState state;
  // The mesh of the ranks that saved; empty if they were a group without axes.
  std::vector<MeshAxis> mesh = {};
  // For each tensor of the model, the elements that ranks had: "0-1: [0, 0] + [2, 5]".
  std::map<std::string, std::vector<std::string>> parts = {};
  // The saved states of the scheduler and of the scaler, as text, if the run has them.
  std::optional<Metadata> scheduler = {};
  std::optional<Metadata> scaler = {};
  // The other files of the folder, each with file_checksum(): this detects files of different
  // checkpoints. Set by seal().
  Metadata files = {};
};

// Returns the parts that each rank has, as text in the form of LayoutJson::parts.
[[nodiscard]] std::map<std::string, std::vector<std::string>> parts_text(
    const std::vector<std::vector<Part>>& by_rank);

// Returns a checksum of eight digits: of the header of a safetensors file, which contains the
// checksums of its tensors, or of a whole index file. Throws BadInput and SystemError, which name
// the file.
[[nodiscard]] std::string file_checksum(const std::filesystem::path& file);
// Returns true if LayoutJson::files include `name`, as one file or as an index of shards.
[[nodiscard]] bool has_file(const LayoutJson& json, const std::string& name);
// Sets LayoutJson::files to the files of the folder.
void seal(LayoutJson& json, const std::filesystem::path& folder);
// Throws BadInput, which names the first of LayoutJson::files that is missing or has another
// checksum.
void check_sealed(const LayoutJson& json, const std::filesystem::path& folder);
// Throws BadInput unless all of these files are in LayoutJson::files, so that only saved files are
// read.
void check_noted(const LayoutJson& json, std::span<const std::filesystem::path> files);

// Returns the text of the file, including a checksum of this text. Throws InvalidArgument, which
// names the text, if a text is not UTF-8.
[[nodiscard]] std::string json_text(const LayoutJson& json);

// Returns the content of the folder's file. Throws BadInput and SystemError.
[[nodiscard]] std::string read_json_text(const std::filesystem::path& folder);
// Parses `text`. Throws BadInput, which names the file and the error in it.
[[nodiscard]] LayoutJson parse_json_text(const std::filesystem::path& folder,
                                         const std::string& text);

// A number in full precision: "0.1", "inf", "nan".
[[nodiscard]] std::string number_text(double number);
[[nodiscard]] std::optional<double> number_in(const std::string& text);

}  // namespace lockstep::checkpoint
