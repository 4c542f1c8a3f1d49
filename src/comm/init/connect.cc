#include "comm/init/connect.h"

#include <lockstep/comm/device.h>

#include <ATen/ops/zeros.h>

namespace lockstep {

// All ranks go through the directions in one order, so no two wait for each other.
void connect(Group& group, const Directions& directions, std::optional<Duration> timeout) {
  if (!has_streams(group)) return;
  const CallOptions call{.tag = "connect", .timeout = timeout};
  const at::Tensor message = at::zeros({1});
  for (const auto& [source, destination] : directions) {
    if (source == destination) continue;
    if (group.rank() == source) group.send(message, destination, call).wait();
    if (group.rank() == destination) group.recv(message, source, call).wait();
  }
}

}  // namespace lockstep
