// Converts the header of a safetensors file between text and values, and compares the checksums in
// it.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <span>
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

// Returns a new tensor on the CPU for the values of the entry. Throws BadInput if its memory cannot
// be allocated.
[[nodiscard]] at::Tensor new_tensor(const TensorEntry& entry);

// The dtype names of the format.
struct DtypeName {
  std::string_view name;
  c10::ScalarType dtype;
};

[[nodiscard]] std::span<const DtypeName> dtype_names();
// Throws InvalidArgument for a dtype without a name.
[[nodiscard]] std::string_view name_of(c10::ScalarType dtype);

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

// The text of a checksum in the header's metadata (docs/decisions/0041-saving-by-parts.md). Returns
// eight digits, so that a header keeps its length when the checksums are filled in.
[[nodiscard]] std::string checksum_text(std::uint32_t checksum);

// Throws InvalidArgument for an entry that would be taken for a checksum.
void check_metadata(const Metadata& metadata);

// Adds one checksum per entry of the header, in their order; replaces existing ones.
void add_checksums(SafetensorsHeader& header, std::span<const std::uint32_t> checksums);

// Returns the checksum text of a tensor in a header's metadata; null if it has no checksum.
[[nodiscard]] const std::string* checksum_in(const Metadata& metadata, const TensorEntry& entry);
// Throws BadInput, which names the tensor, if its checksum is not `found`.
void compare_checksum(const Metadata& metadata, const TensorEntry& entry, std::uint32_t found);

// Throws BadInput if there is a checksum of a tensor that the header does not name, or if only some
// tensors have checksums: a damaged header would disable checksums.
void check_checksums(const SafetensorsHeader& header);

[[nodiscard]] Metadata without_checksums(Metadata metadata);

}  // namespace lockstep::checkpoint
