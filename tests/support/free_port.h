// A port for tests that listen.
#pragma once

#include <cstdint>

namespace lockstep::test {

// Returns a TCP port of 127.0.0.1 that is currently free.
[[nodiscard]] std::uint16_t free_port();

}  // namespace lockstep::test
