#include "base/check.h"
#include "base/format.h"

#include <lockstep/plan/picture.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace lockstep::plan {
namespace {

constexpr double most_cells_of_time = 4000;

// Returns the time that one cell stands for.
double cell_time(const Schedule& schedule, const PipelineTimes& times,
                 const Simulation& simulation) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const std::vector<Action>& actions : schedule.ranks)
    for (const Action& action : actions)
      if (const double time = times.of(action); time > 0) shortest = std::min(shortest, time);
  if (!std::isfinite(shortest)) return 1;
  return std::max(shortest, simulation.total() / most_cells_of_time);
}

using Row = std::vector<std::string>;

Row row_of(const Schedule& schedule, const PipelineTimes& times, const Simulation& simulation,
           std::size_t rank, double cell) {
  const std::vector<Action>& actions = schedule.ranks[rank];
  const bool has_one_stage =
      schedule.stages == schedule.rank_count();  // then labels omit the stage
  Row row;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const double start = simulation.starts[rank][i];
    const double end = start + times.of(actions[i]);
    const auto at = static_cast<std::size_t>(std::llround(start / cell));
    if (row.size() < at) row.resize(at, ".");
    std::string text = text_of(actions[i]);
    row.push_back(has_one_stage ? text.substr(text.find_first_not_of("0123456789")) : text);
    const auto after = static_cast<std::size_t>(std::llround(end / cell));
    if (row.size() < after) row.resize(after, "-");
  }
  return row;
}

}  // namespace

std::string text_picture(const Schedule& schedule, const PipelineTimes& times,
                         const Simulation& simulation, int columns) {
  check(columns >= 1, "text_picture: expected at least one column, found {}", columns);
  const double cell = cell_time(schedule, times, simulation);
  std::vector<Row> rows;
  std::size_t width = 1, length = 0;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    rows.push_back(row_of(schedule, times, simulation, rank, cell));
    length = std::max(length, rows.back().size());
    for (const std::string& text : rows.back()) width = std::max(width, text.size());
  }
  const std::string last_rank = formatted("rank {}", rows.size() - 1);
  const auto beside =
      static_cast<std::ptrdiff_t>(columns) - static_cast<std::ptrdiff_t>(last_rank.size());
  const std::size_t in_block = static_cast<std::size_t>(
      std::max<std::ptrdiff_t>(1, beside / static_cast<std::ptrdiff_t>(width + 1)));
  std::string picture;
  for (std::size_t begin = 0; begin < length; begin += in_block) {
    if (length > in_block)
      picture +=
          formatted("{}from {:g}\n", begin == 0 ? "" : "\n", static_cast<double>(begin) * cell);
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      std::string line = formatted("rank {}", rank);
      line.resize(last_rank.size(), ' ');
      for (std::size_t i = begin; i < std::min(begin + in_block, length); ++i) {
        const std::string text = i < rows[rank].size() ? rows[rank][i] : ".";
        line += ' ' + text + std::string(width - text.size(), ' ');
      }
      picture += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
    }
  }
  return picture;
}

}  // namespace lockstep::plan
