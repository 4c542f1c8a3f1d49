// Converts the header of a safetensors file between text and values.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::sys {
class PlainFile;
}

namespace lockstep::checkpoint {

// The header's entry of one tensor. `begin` and `end` count from the first byte after the header.
struct TensorEntry {
  std::string name;
  c10::ScalarType dtype{};
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// The maximum size of a header, as in the reference implementation.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;

// Returns the JSON text, padded with spaces so that 8 + its length is a multiple of 8. Entries must
// be contiguous. Throws InvalidArgument for content that the format cannot represent: a dtype
// without a name, a tensor named __metadata__, a text that is too long.
[[nodiscard]] std::string format_header(const SafetensorsHeader& header);

// Returns the JSON text at the beginning of a file that has not been read yet. Throws BadInput
// without naming the file.
[[nodiscard]] std::string read_header_text(sys::PlainFile& file);

// Checks everything against `data_bytes`, the number of bytes after the header. Throws BadInput
// without naming the file.
[[nodiscard]] SafetensorsHeader parse_header(std::string_view text, std::uint64_t data_bytes);

}  // namespace lockstep::checkpoint
