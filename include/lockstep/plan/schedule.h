// Schedule: the computations of each rank, and their order, in one step of a pipeline. A schedule
// is data, not code: everything here is pure arithmetic, does not use LibTorch and is thread-safe.
//
//   plan::Schedule schedule = plan::make_schedule("1f1b", {.stages = 4, .micro_batches = 8});
//
// A model is split into stages, a batch into micro-batches. For every stage and micro-batch there
// is one forward (F) and one backward. The backward is one action (B), or two: first the gradient
// of the stage's inputs (I), for which the previous stage waits, and later the gradient of its
// weights (W), when there is time.
//
// A schedule does not list messages, because they follow from the placement of the stages: the
// outputs of an F go to the rank of the next stage and the gradients of a B or I go to the rank of
// the previous stage, in the order in which the sending rank computes them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::plan {

enum class Compute : char { forward = 'F', backward = 'B', input = 'I', weight = 'W' };

struct Action {
  Compute compute = Compute::forward;
  int stage = 0;
  int micro_batch = 0;
  bool operator==(const Action&) const = default;
};

// Returns a text such as "3F12": stage 3, forward, micro-batch 12.
[[nodiscard]] std::string text_of(const Action& action);

struct Schedule {
  std::string name;  // from make_schedule() or a file; for messages
  int stages = 0;
  int micro_batches = 0;
  std::vector<std::vector<Action>> ranks;  // the ordered actions of each rank

  [[nodiscard]] int rank_count() const { return static_cast<int>(ranks.size()); }
  bool operator==(const Schedule&) const = default;
};

// Upper limits of a schedule. most_cells limits stages * micro-batches.
inline constexpr int most_stages = 4096;
inline constexpr int most_micro_batches = 65536;
inline constexpr std::size_t most_cells = std::size_t{1} << 22;

struct ScheduleShape {
  int stages = 1;         // total over all ranks
  int chunks = 0;         // stages per rank; 0: stages_per_rank() of the schedule
  int micro_batches = 1;  // per step
};

// Returns "gpipe", "1f1b", "interleaved", "zb-h1", "zbv" and "dualpipev".
[[nodiscard]] std::span<const std::string_view> schedule_names();

// Makes a named schedule for p = stages / chunks ranks:
//   gpipe        all forwards, then all backwards. Stage r on rank r.
//                Huang et al., arXiv:1811.06965
//   1f1b         p - 1 - r forwards, then one forward and one backward in turn: at most p - r
//                activations. Narayanan et al., PipeDream-Flush, arXiv:2104.04473
//   interleaved  1f1b with 2 or more chunks: stages r, r + p, r + 2p, ... on rank r. The number of
//                micro-batches must be a multiple of p. Same paper
//   zb-h1        1f1b with I and W; W is delayed to fill the bubble at the end: at most p
//                activations. Qi et al., Zero Bubble, arXiv:2401.10241
//   zbv          2 chunks, stages r and 2p - 1 - r on rank r, so that a micro-batch passes the
//                ranks down and up again. If F, I and W take equally long and there are at least
//                2p - 1 micro-batches, no rank waits between its first action and its last. Same
//                paper, and arXiv:2405.15362
//   dualpipev    stages as in zbv. Pairs a forward of one chunk with a backward of the other, for
//                layers whose communication overlaps with it; at least 2p micro-batches.
//                DeepSeek-V3, arXiv:2412.19437, in its authors' V-shaped half
// All schedules run the backwards of a stage in the order of the micro-batches, so that gradients
// are summed in the same order as in one process.
//
// Throws InvalidArgument with a one-line message for an unknown name (the message suggests a
// similar one), if the stages are not divisible by the chunks, or if the definition of the schedule
// does not allow the shape.
[[nodiscard]] Schedule make_schedule(std::string_view name, ScheduleShape shape);
// Returns the minimum number of stages per rank of a named schedule: 2 for interleaved, zbv and
// dualpipev, otherwise 1. Throws InvalidArgument for an unknown name.
[[nodiscard]] int stages_per_rank(std::string_view name);

// A problem of a schedule and its position.
struct ScheduleProblem {
  int rank = 0;
  std::size_t index = 0;  // index of the action in the rank's list
  std::string what;       // includes the expected and the actual value
};

// Returns the first reason why a schedule cannot be executed, or std::nullopt if it can: a
// duplicate action, a stage on two ranks, a missing dependency of an action, a forward without its
// backward, or a deadlock between ranks.
[[nodiscard]] std::optional<ScheduleProblem> find_problem(const Schedule& schedule);

// Throws InvalidArgument if the schedule has a problem: "schedule 1f1b: rank 2: ...".
void check_schedule(const Schedule& schedule);

// Returns the rank of each stage. The schedule must be valid.
[[nodiscard]] std::vector<int> rank_of_stages(const Schedule& schedule);

// Returns the part of a schedule for a batch that has fewer micro-batches. If `schedule` has no
// problem, the result has none.
[[nodiscard]] Schedule first_micro_batches(const Schedule& schedule, int micro_batches);

// Return only the forwards of a schedule, for evaluation: those of the first `micro_batches`
// micro-batches, or all. If `schedule` has no deadlock, the result has none.
[[nodiscard]] Schedule forward_only(const Schedule& schedule, int micro_batches);
[[nodiscard]] Schedule forward_only(const Schedule& schedule);

// Schedules as files: one line per rank with its ordered actions, separated by commas.
//
//   0F0,0F1,0B0,0B1
//   ,1F0,1B0,1F1,1B1
//
// 0F1 is the forward of stage 0 for micro-batch 1; F is forward, B backward, I the gradient of
// inputs, W the gradient of weights. Empty cells mean idle time and are skipped. The format is that
// of the compute-only files of torch.distributed.pipelining.

// Parses a schedule. `name` is the file name, for messages. Throws BadInput with a one-line
// message, "NAME:LINE: expected X, found Y", for text that is not an action, numbers beyond the
// limits, and every problem that find_problem() detects.
[[nodiscard]] Schedule parse_schedule(std::string_view text, std::string_view name);

// Returns text that parse_schedule() converts back to the same schedule, except for its name.
[[nodiscard]] std::string schedule_text(const Schedule& schedule);

// Reads and parses a file. Blocks on disk I/O. Throws BadInput as parse_schedule() does, and
// SystemError if the file cannot be read.
[[nodiscard]] Schedule read_schedule(const std::filesystem::path& path);

}  // namespace lockstep::plan

#pragma GCC visibility pop
