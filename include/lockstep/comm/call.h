// CallInfo describes one call of a group: the operation, the element type, the number of the call,
// and more. Needs no LibTorch; Call (backend.h) adds the tensors.
#pragma once

#include <lockstep/base/deadline.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <source_location>
#include <span>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep {

// How a reduction combines ranks. `average` divides once, after the sum, and takes floating point
// only; band, bor and bxor take integers and bool.
enum class Op : std::uint8_t { sum, average, product, min, max, band, bor, bxor };

// The calls of a group, named like Group's methods.
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

[[nodiscard]] constexpr bool combines(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}
[[nodiscard]] constexpr bool has_root(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast ||
         collective == Collective::gather || collective == Collective::scatter;
}
// Returns true if the input has one part per rank and each rank receives only its own part.
[[nodiscard]] constexpr bool gives_each_its_part(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_to_all ||
         collective == Collective::scatter;
}
[[nodiscard]] constexpr bool is_message(Collective collective) {
  return collective == Collective::send || collective == Collective::recv;
}

// The type of an element, without LibTorch: a type that reductions can combine, or one whose bytes
// can only be moved.
enum class DType : std::uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  int64,
  int32,
  int16,
  int8,
  uint8,
  boolean,
  complex64,
  complex128,
  uint16,  // this and all following types can only be moved
  uint32,
  uint64,
  complex32,
  float8_e5m2,
  float8_e4m3fn,
  float8_e5m2fnuz,
  float8_e4m3fnuz,
  opaque1,
  opaque2,
  opaque4,
  opaque8,
  opaque16
};
inline constexpr std::size_t dtype_count = 25;

[[nodiscard]] constexpr std::size_t bytes_of(DType dtype) {
  constexpr std::array<std::size_t, dtype_count> bytes{8, 4, 2, 2, 8, 4, 2, 1, 1, 1, 8, 16, 2,
                                                       4, 8, 4, 1, 1, 1, 1, 1, 2, 4, 8, 16};
  return bytes.at(static_cast<std::size_t>(dtype));
}
[[nodiscard]] std::string_view name_of(DType dtype);
[[nodiscard]] constexpr bool is_integral(DType dtype) {
  return dtype >= DType::int64 && dtype <= DType::boolean;
}
[[nodiscard]] constexpr bool is_complex(DType dtype) {
  return dtype == DType::complex64 || dtype == DType::complex128;
}
[[nodiscard]] constexpr bool is_opaque(DType dtype) { return dtype >= DType::uint16; }

// Calls that are numbered together: the collectives of a group, or the messages from one rank to
// another.
struct ChannelKey {
  int source = -1;  // both -1: the collectives
  int destination = -1;

  [[nodiscard]] constexpr bool is_collective() const { return source < 0; }
  // Returns the index of the channel on `rank`: 0 for the collectives; then, for each peer, one
  // index for messages to it and one for messages from it.
  [[nodiscard]] constexpr std::size_t index_at(int rank) const {
    if (is_collective()) return 0;
    return source == rank ? 1 + 2 * static_cast<std::size_t>(destination)
                          : 2 + 2 * static_cast<std::size_t>(source);
  }
  friend auto operator<=>(const ChannelKey&, const ChannelKey&) = default;
};

struct CallId {
  ChannelKey channel;
  std::uint64_t number = 0;  // in its channel, from 1

  friend auto operator<=>(const CallId&, const CallId&) = default;
};

// Returns the channel of a call that `rank` makes; for a message, `root` is the peer.
[[nodiscard]] constexpr ChannelKey channel_of(Collective collective, int root, int rank) {
  if (collective == Collective::send) return {rank, root};
  if (collective == Collective::recv) return {root, rank};
  return {};
}

// One call as a rank posts it, without its tensors. Counts and tag refer to the caller's memory and
// are valid only during the post. GroupState fills it once; the flight recorder and the backends
// read it.
struct CallInfo {
  Collective collective = Collective::barrier;
  Op op = Op::sum;
  int root = -1;  // root of a rooted operation; the peer of send and recv
  // Type and number of elements of the tensor whose size is equal on all ranks: the output of
  // all_gather, scatter and recv, the input of the other operations. std::nullopt and 0 for a
  // barrier.
  std::optional<DType> dtype;
  std::int64_t elements = 0;
  // Number of elements for or from each rank. Empty: parts are equal.
  std::span<const std::int64_t> input_counts;
  std::span<const std::int64_t> output_counts;
  std::string_view tag;  // names the bucket or unit; ranks that give different tags are a Mismatch
  Duration timeout{};    // of the wait
  std::source_location where;
  CallId id;  // assigned by the group; a post that throws is not counted

  [[nodiscard]] bool is_uneven() const { return !input_counts.empty() || !output_counts.empty(); }
};

}  // namespace lockstep

#pragma GCC visibility pop
