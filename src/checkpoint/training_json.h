// training.json: its text, and back.
#pragma once

#include <lockstep/checkpoint/training_state.h>

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::checkpoint {

struct TrainingJson {
  TrainingState state;
  // Texts of what a scheduler and a scaler save, where there were such.
  std::optional<Metadata> scheduler = {};
  std::optional<Metadata> scaler = {};
  // The files beside it, each with header_checksum(): what ties them together. Set by seal().
  Metadata files = {};
};

// Of what a safetensors file says of its tensors, their checksums included; eight digits. BadInput
// and SystemError name the file.
[[nodiscard]] std::string header_checksum(const std::filesystem::path& file);
// Notes the files that there are in the folder.
void seal(TrainingJson& json, const std::filesystem::path& folder);
// BadInput names the first of the noted files that is missing or another one.
void check_sealed(const TrainingJson& json, const std::filesystem::path& folder);

// With a checksum of its own. InvalidArgument names a text that is no UTF-8.
[[nodiscard]] std::string json_text(const TrainingJson& json);

// The content of the folder's file; BadInput and SystemError.
[[nodiscard]] std::string read_json_text(const std::filesystem::path& folder);
// BadInput names the file, and what is wrong with it.
[[nodiscard]] TrainingJson parse_json_text(const std::filesystem::path& folder,
                                           const std::string& text);

// A number in full precision: "0.1", "inf", "nan".
[[nodiscard]] std::string number_text(double number);
[[nodiscard]] std::optional<double> number_in(const std::string& text);

}  // namespace lockstep::checkpoint
