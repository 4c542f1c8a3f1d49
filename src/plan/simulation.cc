#include <lockstep/plan/simulation.h>

#include "base/check.h"
#include "base/format.h"
#include "plan/walk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

namespace lockstep::plan {
namespace {

void check_time(double time, const char* of) {
  check(std::isfinite(time) && time >= 0, "simulate: time of {}: expected at least 0, found {}", of,
        time);
}

void check_times(const Schedule& schedule, const PipelineTimes& times) {
  const std::size_t count = times.stages.size();
  check(count == 1 || count == static_cast<std::size_t>(schedule.stages),
        "simulate: expected times of one stage or of all {}, found {}", schedule.stages, count);
  for (const StageTimes& stage : times.stages) {
    check_time(stage.forward, "F");
    check_time(stage.backward, "B");
    check_time(stage.input, "I");
    check_time(stage.weight, "W");
  }
  check_time(times.communication, "communication");
}

}  // namespace

double StageTimes::of(Compute compute) const {
  switch (compute) {
    case Compute::forward:
      return forward;
    case Compute::backward:
      return backward;
    case Compute::input:
      return input;
    case Compute::weight:
      break;
  }
  return weight;
}

double PipelineTimes::of(const Action& action) const {
  const std::size_t stage = stages.size() == 1 ? 0 : static_cast<std::size_t>(action.stage);
  return stages[stage].of(action.compute);
}

double Simulation::total() const {
  double begin = ranks.front().begin, end = 0;
  for (const RankSimulation& rank : ranks) {
    begin = std::min(begin, rank.begin);
    end = std::max(end, rank.end);
  }
  return end - begin;
}

const RankSimulation& Simulation::longest() const {
  return *std::ranges::max_element(ranks, {},
                                   [](const auto& rank) { return rank.end - rank.begin; });
}

double Simulation::bubble() const {
  const RankSimulation& rank = longest();
  const double time = rank.end - rank.begin;
  return time > 0 ? rank.idle() / time : 0;
}

int Simulation::peak_activations() const {
  return std::ranges::max_element(ranks, {}, &RankSimulation::peak_activations)->peak_activations;
}

Simulation simulate(const Schedule& schedule, const PipelineTimes& times) {
  check_schedule(schedule);
  check_times(schedule, times);
  Walk reached = walk(schedule, times);
  Simulation simulation{{}, std::move(reached.starts)};
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    RankSimulation rank{.begin = simulation.starts[r].front(), .end = reached.ends[r]};
    int activations = 0;
    for (const Action& action : schedule.ranks[r]) {
      rank.busy += times.of(action);
      if (action.compute == Compute::forward) ++activations;
      if (action.compute == Compute::backward || action.compute == Compute::weight) --activations;
      rank.peak_activations = std::max(rank.peak_activations, activations);
    }
    simulation.ranks.push_back(rank);
  }
  return simulation;
}

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
  const bool has_one_stage = schedule.stages == schedule.rank_count();  // labels omit the stage
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

namespace {

constexpr double row_height = 26, left = 70, top = 34, letter_width = 7;
constexpr double widest = 16000, narrowest = 480;

// Colours of a rank's first stage and of its other stages.
struct Colours {
  std::string_view first, other;
};

Colours colours_of(Compute compute) {
  switch (compute) {
    case Compute::forward:
      return {"#8ab4f8", "#3f6fc4"};
    case Compute::backward:
      return {"#f2a97e", "#c8632f"};
    case Compute::input:
      return {"#f4d27a", "#c79a1e"};
    case Compute::weight:
      break;
  }
  return {"#9fd3a0", "#4c9350"};
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

// Returns a scale at which the longest label fits into the shortest action, within limits.
double scale_of(const Schedule& schedule, const PipelineTimes& times, double total) {
  if (total <= 0) return 1;
  double shortest = total;
  std::size_t letters = 1;
  for (const std::vector<Action>& actions : schedule.ranks)
    for (const Action& action : actions) {
      if (const double time = times.of(action); time > 0) shortest = std::min(shortest, time);
      letters = std::max(letters, text_of(action).size());
    }
  const double wanted = (static_cast<double>(letters) * letter_width + 4) / shortest;
  return std::clamp(wanted, narrowest / total, widest / total);
}

}  // namespace

std::string svg_picture(const Schedule& schedule, const PipelineTimes& times,
                        const Simulation& simulation) {
  const double scale = scale_of(schedule, times, simulation.total());
  const double width = left + simulation.total() * scale + 10;
  const double height = top + row_height * schedule.rank_count() + 10;
  std::string svg = formatted(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"4\" y=\"20\">{}: {}, {}, {}; bubble {:.1f} %, peak {}</text>\n",
      width, height, escaped(schedule.name), counted(schedule.stages, "stage"),
      counted(schedule.rank_count(), "rank"), counted(schedule.micro_batches, "micro-batch", "es"),
      100 * simulation.bubble(), counted(simulation.peak_activations(), "activation"));
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const double y = top + row_height * static_cast<double>(rank);
    svg += formatted("<text x=\"4\" y=\"{:.1f}\">rank {}</text>\n", y + 17, rank);
    const std::vector<Action>& actions = schedule.ranks[rank];
    int first_stage = actions.front().stage;
    for (const Action& action : actions) first_stage = std::min(first_stage, action.stage);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const double start = simulation.starts[rank][i], time = times.of(action);
      const Colours colours = colours_of(action.compute);
      const std::string text = text_of(action);
      const bool has_room = time * scale >= static_cast<double>(text.size()) * letter_width;
      svg += formatted(
          "<g><title>{}: {:g} to {:g}</title><rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
          "height=\"{:.1f}\" fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"0.5\"/>",
          text, start, start + time, left + start * scale, y, time * scale, row_height - 2,
          action.stage == first_stage ? colours.first : colours.other);
      if (has_room)
        svg += formatted("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                         left + (start + time / 2) * scale, y + 17, text);
      svg += "</g>\n";
    }
  }
  return svg + "</svg>\n";
}

}  // namespace lockstep::plan
