#include "apps/bench/memory/formula.h"

#include <lockstep/base/check.h>

namespace lockstep::apps {

double bytes_a_parameter(std::string_view mode, int element_bytes, int ranks) {
  check(element_bytes == 4 || element_bytes == 2,
        "bytes a parameter: expected elements of 4 or 2 bytes, found {}", element_bytes);
  double parameter = element_bytes, gradient = parameter, state = element_bytes == 4 ? 8 : 12;
  if (mode == "none" || mode == "ddp") return parameter + gradient + state;
  if (mode == "optimizer") return parameter + gradient + state / ranks;
  if (mode == "gradients") return parameter + (gradient + state) / ranks;
  check(mode == "full" || mode == "full-node-shared", "bytes a parameter: there is no mode {}",
        mode);
  return (parameter + gradient + state) / ranks;
}

}  // namespace lockstep::apps
