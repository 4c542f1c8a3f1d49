// Recognises files of well-known formats by their first bytes, for readers of formats without a
// magic number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::sys {

inline constexpr std::size_t file_kind_bytes = 512;

inline constexpr std::string_view safetensors_kind = "a safetensors file";

// Returns the name of the format for messages, such as "an array of NumPy (.npy)", or an empty
// string if the format is unknown. `begin` holds the first file_kind_bytes of a file of `size`
// bytes, or all of it. Each test checks enough bytes that a file of numbers does not match by
// chance.
[[nodiscard]] std::string_view file_kind(std::string_view begin, std::uint64_t size);

}  // namespace lockstep::sys
