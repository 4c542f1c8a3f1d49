// The axes of --mesh.
#pragma once

#include <string_view>

namespace lockstep::train {

inline constexpr std::string_view stages_axis = "pp";
inline constexpr std::string_view copies_axis = "dp";
inline constexpr std::string_view shards_axis = "fsdp";
inline constexpr std::string_view tensor_axis = "tp";
inline constexpr std::string_view context_axis = "cp";
inline constexpr std::string_view experts_axis = "ep";

}  // namespace lockstep::train
