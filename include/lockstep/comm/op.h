// The operations of a group, and how a reduction combines the values of several ranks.
#pragma once

#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep {

// How a reduction combines ranks. `average` divides once, after the sum, and takes floating point
// only; band, bor and bxor take integers and bool.
enum class Op : std::uint8_t { sum, average, product, min, max, band, bor, bxor };

// The calls that a group knows; the names are those of Group's methods.
enum class Collective : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  barrier,
  send,
  recv
};

[[nodiscard]] std::string_view name_of(Op op);
[[nodiscard]] std::string_view name_of(Collective collective);

}  // namespace lockstep

#pragma GCC visibility pop
