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
};

// InvalidArgument names a text that is no UTF-8.
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
