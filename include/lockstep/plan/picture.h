// Pictures of a simulated schedule: time runs from left to right, with one row per rank.
#pragma once

#include <lockstep/plan/schedule.h>
#include <lockstep/plan/simulation.h>

#include <string>

#pragma GCC visibility push(default)

namespace lockstep::plan {

// Returns rows of text in blocks of at most `columns` characters. A cell stands for the time of the
// shortest action and is as wide as the longest entry. "F3" is a forward of micro-batch 3 ("5F3":
// of stage 5, printed if a rank has several stages), "-" the rest of an action, "." waiting. Times
// that are not multiples of the shortest one are rounded to cells: the picture then shows the
// order, not the exact times.
[[nodiscard]] std::string text_picture(const Schedule& schedule, const PipelineTimes& times,
                                       const Simulation& simulation, int columns = 110);

// Returns a self-contained SVG document; each action shows its name and times.
[[nodiscard]] std::string svg_picture(const Schedule& schedule, const PipelineTimes& times,
                                      const Simulation& simulation);

}  // namespace lockstep::plan

#pragma GCC visibility pop
