// Reads and writes config.json of a model folder.
#pragma once

#include <lockstep/hub/language_model.h>

#include <filesystem>
#include <string>
#include <variant>

namespace lockstep::hub {

using ModelOptions = std::variant<models::GptOptions, models::LlamaOptions>;

// Throws BadInput if config.json is invalid; the message names the file.
[[nodiscard]] ModelOptions read_config(const std::filesystem::path& folder);

// Returns the text of a config.json with these options.
[[nodiscard]] std::string config_text(const models::GptOptions& options);
[[nodiscard]] std::string config_text(const models::LlamaOptions& options);

}  // namespace lockstep::hub
