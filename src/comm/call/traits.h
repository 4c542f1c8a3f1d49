// What kind of call a collective is.
#pragma once

#include <lockstep/comm/op.h>

namespace lockstep {

[[nodiscard]] constexpr bool combines(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}
[[nodiscard]] constexpr bool has_root(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast ||
         collective == Collective::gather || collective == Collective::scatter;
}
// An input has a part for each rank, and a rank gets nothing but its own.
[[nodiscard]] constexpr bool gives_each_its_part(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_to_all ||
         collective == Collective::scatter;
}
[[nodiscard]] constexpr bool is_message(Collective collective) {
  return collective == Collective::send || collective == Collective::recv;
}

}  // namespace lockstep
