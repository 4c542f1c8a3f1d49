// A port for a test that listens.
#pragma once

#include <cstdint>

namespace lockstep::test {

// A TCP port of 127.0.0.1 that nothing listens on right now.
[[nodiscard]] std::uint16_t free_port();

}  // namespace lockstep::test
