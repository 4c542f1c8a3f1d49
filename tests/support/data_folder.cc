#include "support/data_folder.h"

#include <cstdlib>

namespace lockstep::test {

std::optional<std::filesystem::path> data_folder() {
  if (const char* named = std::getenv("LOCKSTEP_DATA")) return named;
  std::filesystem::path source = LOCKSTEP_SOURCE_DIR;
  for (const auto& candidate : {source / "../shared/data", source / "data"}) {
    if (std::filesystem::is_directory(candidate)) return candidate;
  }
  return std::nullopt;
}

std::optional<std::filesystem::path> data_file(std::string_view name) {
  auto folder = data_folder();
  if (!folder || !std::filesystem::exists(*folder / name)) return std::nullopt;
  return *folder / name;
}

std::string no_data(std::string_view name) {
  auto folder = data_folder();
  return "no " + std::string(name) +
         (folder ? " in " + folder->string() : ": set LOCKSTEP_DATA to a folder that has it");
}

}  // namespace lockstep::test
