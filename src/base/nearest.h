// What was probably meant: for names that people type (options, keys, parameters).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// Least number of inserted, removed, replaced or swapped neighbouring letters that turns a into b
// (optimal string alignment distance).
[[nodiscard]] int edit_distance(std::string_view a, std::string_view b);

// The known name closest to `name` (the first of equals), unless all differ in more than a third of
// their letters.
[[nodiscard]] std::optional<std::string_view> nearest(std::string_view name,
                                                      std::span<const std::string_view> known);

// "unknown key 'laers'; did you mean 'layers'?", or with nothing near: "unknown key 'x'; known:
// batch, layers".
[[nodiscard]] std::string unknown_name(std::string_view kind, std::string_view name,
                                       std::span<const std::string_view> known);

}  // namespace lockstep
