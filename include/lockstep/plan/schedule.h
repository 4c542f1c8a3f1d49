// Schedule: what each rank computes in which order in one step of a pipeline. Data, not code:
// everything here is pure arithmetic, needs no LibTorch, and any thread may call it.
//
//   plan::Schedule schedule = plan::make_schedule("1f1b", {.stages = 4, .micro_batches = 8});
//
// A model is cut into stages, a batch into micro-batches. For every stage and micro-batch there is
// one forward (F) and one backward: in one piece (B), or in two, the gradient of the stage's inputs
// first (I), which the stage before waits for, and the gradient of its weights when there is time
// (W).
//
// A schedule says nothing of messages. Which there are follows from where the stages lie: the
// outputs of an F go to the rank of the next stage, the gradients of a B or I to the rank of the
// stage before, in the order in which the sending rank computes them. Written down they could only
// contradict it.
#pragma once

#include <cstddef>
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

// "3F12": stage 3, forward, micro-batch 12.
[[nodiscard]] std::string text_of(const Action& action);

struct Schedule {
  std::string name;  // of make_schedule(), or of a file; for messages
  int stages = 0;
  int micro_batches = 0;
  std::vector<std::vector<Action>> ranks;  // the actions of each rank, in their order

  [[nodiscard]] int rank_count() const { return static_cast<int>(ranks.size()); }
  bool operator==(const Schedule&) const = default;
};

// The most that a schedule may have; of stages times micro-batches too, most_cells.
inline constexpr int most_stages = 4096;
inline constexpr int most_micro_batches = 65536;
inline constexpr std::size_t most_cells = std::size_t{1} << 22;

struct ScheduleShape {
  int stages = 1;  // parts of the model, over all ranks
  int chunks = 0;  // stages of one rank; 0: as many as the schedule is defined for, or 1 or 2
  int micro_batches = 1;  // of one step
};

// "gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev".
[[nodiscard]] std::span<const std::string_view> schedule_names();

// How a named schedule lays p = stages / chunks ranks out, and what it asks for:
//   gpipe        all forwards, then all backwards. Stage r on rank r.
//                Huang et al., arXiv:1811.06965
//   1f1b         p - 1 - r forwards, then forward and backward in turn: at most p - r activations.
//                Narayanan et al., PipeDream-Flush, arXiv:2104.04473
//   interleaved  1f1b with 2 chunks or more: stages r, r + p, r + 2p, ... on rank r; micro-batches
//                in multiples of p. The same paper
//   zb-h1        1f1b with I and W, W late enough to fill the end: at most p activations.
//                Qi et al., Zero Bubble, arXiv:2401.10241
//   zbv          2 chunks, stages r and 2p - 1 - r on rank r, so that a micro-batch goes down and
//                up again. Where F, I and W take equally long and there are 2p - 1 micro-batches
//                or more, no rank waits between its first action and its last. The same paper, and
//                arXiv:2405.15362
//   dualpipev    stages as zbv; a forward of one chunk beside a backward of the other, for layers
//                whose communication hides behind it; 2p micro-batches or more. DeepSeek-V3,
//                arXiv:2412.19437, cut in half as its authors describe
// Backwards of a stage come in the order of the micro-batches in all of them, so that gradients
// are added up as one process adds them.
//
// InvalidArgument in one line: an unknown name (and what was probably meant), stages that chunks
// do not divide, or what the definition does not allow.
[[nodiscard]] Schedule make_schedule(std::string_view name, ScheduleShape shape);
// The least number of stages that a rank has in a named schedule: 2 for interleaved, zbv and
// dualpipev, otherwise 1. InvalidArgument for an unknown name.
[[nodiscard]] int stages_per_rank(std::string_view name);

// What is wrong with a schedule, and where.
struct ScheduleProblem {
  int rank = 0;
  std::size_t index = 0;  // of the action among the rank's
  std::string what;       // with what was expected and what was found
};

// The first reason why a schedule cannot be executed, if there is one: an action that comes twice,
// a stage on two ranks, an action whose dependency is missing, a forward without its backward, or
// ranks that wait for each other for ever.
[[nodiscard]] std::optional<ScheduleProblem> find_problem(const Schedule& schedule);

// InvalidArgument when there is one: "schedule 1f1b: rank 2: ...".
void check_schedule(const Schedule& schedule);

// The rank of each stage. The schedule has no problem.
[[nodiscard]] std::vector<int> rank_of_stages(const Schedule& schedule);

// The forwards of a schedule alone, for evaluation. Without a deadlock where the schedule has none.
// Of the first `micro_batches` micro-batches, or of all.
[[nodiscard]] Schedule forward_only(const Schedule& schedule, int micro_batches);
[[nodiscard]] Schedule forward_only(const Schedule& schedule);

}  // namespace lockstep::plan

#pragma GCC visibility pop
