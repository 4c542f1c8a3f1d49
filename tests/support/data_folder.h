// Finds the folder of real datasets: LOCKSTEP_DATA, otherwise ../shared/data beside the source
// tree, otherwise data/ in the source tree. A test that needs a dataset and does not find it is
// skipped with a reason:
//
//   auto text = test::data_file("tinyshakespeare.txt");
//   if (!text) GTEST_SKIP() << test::no_data("tinyshakespeare.txt");
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::test {

[[nodiscard]] std::optional<std::filesystem::path> data_folder();
// Returns the path of a file or folder in data_folder(), if it exists.
[[nodiscard]] std::optional<std::filesystem::path> data_file(std::string_view name);
// Returns the reason to skip a test if `name` does not exist.
[[nodiscard]] std::string no_data(std::string_view name);

}  // namespace lockstep::test
