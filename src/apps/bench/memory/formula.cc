#include "apps/bench/memory/formula.h"

#include <lockstep/base/check.h>

namespace lockstep::apps {

double bytes_a_parameter(std::string_view mode, c10::ScalarType dtype, int ranks) {
  bool half = dtype == c10::ScalarType::BFloat16;
  check(half || dtype == c10::ScalarType::Float, "bytes a parameter: expected fp32 or bf16");
  double parameter = half ? 2 : 4, gradient = parameter, state = half ? 12 : 8;
  if (mode == "none" || mode == "ddp") return parameter + gradient + state;
  if (mode == "optimizer") return parameter + gradient + state / ranks;
  if (mode == "gradients") return parameter + (gradient + state) / ranks;
  return (parameter + gradient + state) / ranks;
}

}  // namespace lockstep::apps
