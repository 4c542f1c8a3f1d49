// Pictures of a simulated schedule: time from left to right, a row for each rank.
#pragma once

#include <lockstep/plan/schedule.h>
#include <lockstep/plan/simulation.h>

#include <string>

#pragma GCC visibility push(default)

namespace lockstep::plan {

// Rows of text in blocks of `columns` letters at most, where one cell is as wide as that takes. A
// cell is the shortest time of an action; "F3" is a forward of micro-batch 3 ("5F3", of stage 5,
// where a rank has several), "-" the rest of an action, "." waiting. Times that are no multiples of
// the shortest one are rounded to cells, so the picture then shows the order and not the length.
[[nodiscard]] std::string text_picture(const Schedule& schedule, const PipelineTimes& times,
                                       const Simulation& simulation, int columns = 110);

// An SVG document, complete in itself; each action tells its name and times.
[[nodiscard]] std::string svg_picture(const Schedule& schedule, const PipelineTimes& times,
                                      const Simulation& simulation);

}  // namespace lockstep::plan

#pragma GCC visibility pop
