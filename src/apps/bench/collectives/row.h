// What `lockstep bench collectives` measures, and the line in which a rank is told to.
#pragma once

#include <lockstep/comm/op.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::apps {

inline constexpr std::int64_t kib = 1 << 10, mib = 1 << 20;

// Where the tensors of a call lie: memory of Group::empty_shared, of LibTorch's own allocator, or
// of Group::empty_node_shared, which is there once for all ranks.
enum class Memory : std::uint8_t { arena, ordinary, node_shared };
[[nodiscard]] std::string_view name_of(Memory memory);
// BadInput for another word.
[[nodiscard]] Memory memory_named(std::string_view name);
// Only an all_gather has an input that is a part of its output; a barrier has no tensors.
[[nodiscard]] bool can_lie_in(Memory memory, Collective op);

// The operations that can be measured, by their names in Group. BadInput that names them for
// another.
[[nodiscard]] Collective collective_named(std::string_view name);

// One row of the table: an operation of one size among so many ranks.
struct Row {
  Collective op = Collective::all_reduce;
  std::int64_t bytes = 0;  // of the larger of a rank's two tensors
  int ranks = 2;
  bool outsider = false;   // beside a process that never sleeps
  bool ours_only = false;  // no peer takes part

  bool operator==(const Row&) const = default;
};

// "all_reduce 64 MiB, 2 ranks".
[[nodiscard]] std::string title_of(const Row& row);

// Bytes that divide into one equal part of fp32 numbers for every rank: `bytes` rounded down, but
// at least one number each. A barrier moves none.
[[nodiscard]] std::int64_t even_bytes(Collective op, std::int64_t bytes, int ranks);

// True where one rank may return before the others have begun: a barrier stands before each such
// call, outside the time that is taken.
[[nodiscard]] bool is_rooted(Collective op);

// What bus bandwidth is of algorithm bandwidth (docs/performance.md).
[[nodiscard]] double bus_share(Collective op, int ranks);

// Calls that all ranks of a system make when it is its turn.
struct Turn {
  Collective op = Collective::all_reduce;
  std::int64_t bytes = 0;
  Memory memory = Memory::ordinary;
  int uncounted = 0;
  int calls = 1;
};

// "all_reduce 67108864 arena 2 20", which ranks in other languages read too.
[[nodiscard]] std::string line_of(const Turn& turn);
// BadInput that quotes the line when it is not one.
[[nodiscard]] Turn turn_of(const std::string& line);

}  // namespace lockstep::apps
