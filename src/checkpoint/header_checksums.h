// The checksums of a file's tensors, stored in its metadata
// (docs/decisions/0041-saving-by-parts.md).
#pragma once

#include "checkpoint/safetensors_header.h"

#include <lockstep/checkpoint/safetensors.h>

#include <cstdint>
#include <span>
#include <string>

namespace lockstep::checkpoint {

// Returns eight digits, so that a header keeps its length when the checksums are filled in.
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
