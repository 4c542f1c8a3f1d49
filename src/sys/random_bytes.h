// Random bytes from the kernel, of cryptographic quality.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::sys {

// Uses getrandom(), or /dev/urandom if a container forbids that. Blocks only during boot. Throws
// SystemError if neither source works.
void fill_randomly(std::span<std::byte> bytes);

}  // namespace lockstep::sys
