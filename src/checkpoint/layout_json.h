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
  // The mesh of the ranks that saved; empty where they were a group without axes.
  std::vector<MeshAxis> mesh = {};
  // By tensor of the model, which ranks had which elements of it: "0-1: [0, 0] + [2, 5]".
  std::map<std::string, std::vector<std::string>> parts = {};
  // Texts of what a scheduler and a scaler save, where there were such.
  std::optional<Metadata> scheduler = {};
  std::optional<Metadata> scaler = {};
  // The files beside it, each with file_checksum(): what ties them together. Set by seal().
  Metadata files = {};
};

// What ranks had of tensors, as LayoutJson::parts has it.
[[nodiscard]] std::map<std::string, std::vector<std::string>> parts_text(
    const std::vector<std::vector<Part>>& by_rank);

// Of what a safetensors file says of its tensors, their checksums included, or of the whole of an
// index; eight digits. BadInput and SystemError name the file.
[[nodiscard]] std::string file_checksum(const std::filesystem::path& file);
// Returns true if the noted files include `name`, as one file or as an index of shards.
[[nodiscard]] bool has_file(const LayoutJson& json, const std::string& name);
// Notes the files that there are in the folder.
void seal(LayoutJson& json, const std::filesystem::path& folder);
// BadInput names the first of the noted files that is missing or another one.
void check_sealed(const LayoutJson& json, const std::filesystem::path& folder);
// BadInput unless each of these files of the folder was noted: what is read is what was saved.
void check_noted(const LayoutJson& json, std::span<const std::filesystem::path> files);

// With a checksum of its own. InvalidArgument names a text that is no UTF-8.
[[nodiscard]] std::string json_text(const LayoutJson& json);

// The content of the folder's file; BadInput and SystemError.
[[nodiscard]] std::string read_json_text(const std::filesystem::path& folder);
// BadInput names the file, and what is wrong with it.
[[nodiscard]] LayoutJson parse_json_text(const std::filesystem::path& folder,
                                         const std::string& text);

// A number in full precision: "0.1", "inf", "nan".
[[nodiscard]] std::string number_text(double number);
[[nodiscard]] std::optional<double> number_in(const std::string& text);

}  // namespace lockstep::checkpoint
