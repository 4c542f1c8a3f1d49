#include "support/accelerator/clock.h"

#include <algorithm>

namespace lockstep::test::accelerator {

std::string name_of_stream(Actor stream) {
  return "sim:" + std::to_string(device_of(stream)) + "/stream " +
         std::to_string(stream % streams_per_device);
}

void join(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace lockstep::test::accelerator
