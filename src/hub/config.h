// config.json of a model folder: what it says of the model, and back.
#pragma once

#include <lockstep/hub/language_model.h>

#include <filesystem>
#include <string>
#include <variant>

namespace lockstep::hub {

using ModelOptions = std::variant<models::GptOptions, models::LlamaOptions>;

// BadInput names the file.
[[nodiscard]] ModelOptions read_config(const std::filesystem::path& folder);

// The text of config.json.
[[nodiscard]] std::string config_text(const models::GptOptions& options);
[[nodiscard]] std::string config_text(const models::LlamaOptions& options);

}  // namespace lockstep::hub
