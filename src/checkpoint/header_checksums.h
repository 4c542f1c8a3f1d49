// The checksums of a file's tensors among its metadata (docs/decisions/0041-saving-by-
// parts.md).
#pragma once

#include "checkpoint/safetensors_header.h"

#include <lockstep/checkpoint/safetensors.h>

#include <cstdint>
#include <span>
#include <string>

namespace lockstep::checkpoint {

// Eight digits, so that a header keeps its length when the checksums are filled in.
[[nodiscard]] std::string checksum_text(std::uint32_t checksum);

// InvalidArgument for an entry that would pass for a checksum.
void check_metadata(const Metadata& metadata);

// One for each of the header's entries, in their order; replaces those that are there.
void add_checksums(SafetensorsHeader& header, std::span<const std::uint32_t> checksums);

// The text that a header's metadata have for a tensor; null when they have none.
[[nodiscard]] const std::string* checksum_in(const Metadata& metadata, const TensorEntry& entry);
// BadInput names the tensor when that is another one than `found`.
void compare_checksum(const Metadata& metadata, const TensorEntry& entry, std::uint32_t found);

// Throws BadInput for a checksum of a tensor that the header does not name, and for a tensor
// without a checksum if another one has one: a damaged header would turn checksums off.
void check_checksums(const SafetensorsHeader& header);

[[nodiscard]] Metadata without_checksums(Metadata metadata);

}  // namespace lockstep::checkpoint
