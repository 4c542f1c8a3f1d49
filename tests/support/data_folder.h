// Where real data sets lie: LOCKSTEP_DATA, else ../shared/data beside the source tree, else data/
// in it. A test that needs one and finds none skips and says why:
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
// A file or folder in it, when it exists.
[[nodiscard]] std::optional<std::filesystem::path> data_file(std::string_view name);
// The reason to print when it does not.
[[nodiscard]] std::string no_data(std::string_view name);

}  // namespace lockstep::test
