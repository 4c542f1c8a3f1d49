// Recognizes files of well-known formats by their first bytes, for readers of formats that have no
// magic number of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::sys {

inline constexpr std::size_t file_kind_bytes = 512;

inline constexpr std::string_view safetensors_kind = "a safetensors file";

// For messages: "an array of NumPy (.npy)"; empty if the format is not known. `begin`: the first
// file_kind_bytes of a file of `size` bytes, or all of it. Each test looks at so many bytes that a
// file of numbers is not mistaken for another kind by chance.
[[nodiscard]] std::string_view file_kind(std::string_view begin, std::uint64_t size);

}  // namespace lockstep::sys
