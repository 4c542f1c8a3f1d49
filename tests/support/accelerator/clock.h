// Vector clocks of the simulated accelerator: one component per stream. Operation a
// happens before operation b if b's clock has reached a's time in the component of a's stream.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace lockstep::test::accelerator {

constexpr int device_count = 4;
constexpr int streams_per_device = 32;
constexpr int stream_count = device_count * streams_per_device;
constexpr int host_count = device_count;  // a host is a rank: all threads that launch for it

// The number of a stream among the streams of all devices.
using Actor = int;

[[nodiscard]] constexpr Actor actor_of(int device, int stream) {
  return device * streams_per_device + stream;
}
[[nodiscard]] constexpr int device_of(Actor stream) { return stream / streams_per_device; }
// "sim:1/stream 3".
[[nodiscard]] std::string name_of_stream(Actor stream);

using Clock = std::array<std::uint32_t, stream_count>;

// The component-wise maximum.
void join(Clock& clock, const Clock& other);

// A point in a stream: it is reached when all tasks that were launched before record() have
// finished. An event that was never recorded has no stream, and waiting for it has no effect, as in
// CUDA.
struct Event {
  Actor stream = -1;
  std::uint64_t sequence = 0;  // how many tasks the stream had been given
  Clock clock{};
};

}  // namespace lockstep::test::accelerator
