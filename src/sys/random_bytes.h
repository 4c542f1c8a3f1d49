// Random bytes from the kernel, of cryptographic quality.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::sys {

// Uses getrandom(), or /dev/urandom if a container forbids that. Blocks only during boot. Throws
// SystemError if neither source works.
[[nodiscard]] std::string random_bytes(std::size_t size);

// Returns two digits per byte: "00ff".
[[nodiscard]] std::string hexadecimal(std::string_view bytes);

}  // namespace lockstep::sys
