// What a person sees of a run: on a terminal one line that is rewritten in place, elsewhere a plain
// line now and then.
#pragma once

#include "train/metrics.h"

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::train {

// "step 250/2000  loss 2.314  val_loss 2.298  391 samples/s  412 MB  3.1 ms waiting  1:07 left";
// what is not known is left out. Where the parts of a step are measured, all of them stand in the
// place of the waiting: "forward 4.1, backward 9.2, waiting 3.1, update 1.3 ms".
[[nodiscard]] std::string progress_text(const MetricsRow& row);

// The same for a line of a terminal: a bar, and of the figures as many as fit.
//
//   [=====>          ]  12%  250/2000  loss 2.314  25.0k tokens/s  412 MB  1:07 left
//
// It leaves the last column free, where terminals differ in what they do.
struct LineLook {
  int columns = 80;
  bool colours = false;
};
[[nodiscard]] std::string progress_line(const MetricsRow& row, LineLook look);
// progress_text() with as many figures as fit: of an evaluation, whose line stays.
[[nodiscard]] std::string evaluation_line(const MetricsRow& row, LineLook look);
// "2.610", "0.0001234", "12345": to so many significant digits, and whole above them.
[[nodiscard]] std::string loss_text(double loss, int digits = 4);
// "0:07", "12:40", "3:02:11".
[[nodiscard]] std::string duration_text(double seconds);

// The terminal on which a line of this stream can be rewritten: the stream's own, or the one that
// LOCKSTEP_TERMINAL names (a path, or 1 for one without), because the reader of this stream passes
// it on to there, carriage returns and all. None where TERM is dumb.
[[nodiscard]] std::optional<std::string> terminal_of(std::FILE* stream);
[[nodiscard]] bool is_terminal(std::FILE* stream);
// Columns that a line has now: COLUMNS when it is set, else what the terminal of `stream`, or the
// one that LOCKSTEP_TERMINAL names, says at this moment; 80 where none does.
[[nodiscard]] int terminal_columns(std::FILE* stream);
// Unless NO_COLOR is set to something (no-color.org).
[[nodiscard]] bool wants_colours();

// Used by rank 0 only, from one thread.
class Progress {
 public:
  // With `in_place` one line is rewritten; else a line is written at most every `plain_interval`.
  explicit Progress(std::FILE* stream = stdout, bool in_place = is_terminal(stdout),
                    std::chrono::milliseconds plain_interval = std::chrono::seconds(10));
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows the row if one is due. A row with a val_loss stays on the screen and is always shown.
  void show(const MetricsRow& row);
  // What goes on between two rows, if something is due: "step 250/2000  evaluating 12%".
  void show_text(std::string_view text);
  // A line of its own, above the progress line.
  void say(std::string_view line);
  // Takes the line that is rewritten off the screen.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  std::FILE* stream_;
  bool in_place_;
  bool colours_;
  bool on_screen_ = false;
  std::chrono::milliseconds interval_;
  Clock::time_point next_ = Clock::time_point::min();
};

}  // namespace lockstep::train

#pragma GCC visibility pop
