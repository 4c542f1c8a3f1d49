// Random bytes of the kernel, good enough for secrets.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::sys {

// By getrandom(), or from /dev/urandom where a container refuses that. Blocks only while the
// machine starts. SystemError when neither gives any.
void fill_randomly(std::span<std::byte> bytes);

}  // namespace lockstep::sys
