// The header of a safetensors file as pure functions between text and values: no file is touched
// here.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

// What the header says of one tensor. `begin` and `end` count from the first byte after the header.
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

// The same bound as the reference implementation: no header is larger.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;

// The JSON text, padded with spaces so that 8 + its length is a multiple of 8. Entries must follow
// one another without holes. Throws InvalidArgument for a dtype without a name in the format.
[[nodiscard]] std::string format_header(const SafetensorsHeader& header);

// Checks everything against `data_bytes`, the length of what follows the header. Throws BadInput
// without naming the file.
[[nodiscard]] SafetensorsHeader parse_header(std::string_view text, std::uint64_t data_bytes);

}  // namespace lockstep::checkpoint
