#include <lockstep/comm/op.h>

#include <array>

namespace lockstep {

std::string_view name_of(Op op) {
  constexpr std::array<std::string_view, 8> names{"sum", "average", "product", "min",
                                                  "max", "band",    "bor",     "bxor"};
  return names.at(static_cast<std::size_t>(op));
}

std::string_view name_of(Collective collective) {
  constexpr std::array<std::string_view, 11> names{
      "all_reduce", "reduce",  "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather",
      "scatter",    "barrier", "send",      "recv"};
  return names.at(static_cast<std::size_t>(collective));
}

}  // namespace lockstep
