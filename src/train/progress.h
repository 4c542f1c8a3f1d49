// The progress of a run for the user: on a terminal, one line that is rewritten in place;
// elsewhere, a plain line at intervals.
#pragma once

#include "train/metrics.h"

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::train {

// Returns "step 250/2000  loss 2.314  val_loss 2.298  391 samples/s  412 MiB  3.1 ms waiting  1:07
// left"; unknown values are omitted. If the parts of a step are measured, they replace the waiting
// time: "forward 4.1, backward 9.2, waiting 3.1, update 1.3 ms".
[[nodiscard]] std::string progress_text(const MetricsRow& row);

// Returns a terminal line: a bar, and as many figures as fit.
//
//   [=====>         ]  12%  250/2000  loss 2.314  25.0k tokens/s  412 MiB  1:07 left
//
// The last column stays empty, because terminals treat it differently.
struct LineLook {
  int columns = 80;
  bool colours = false;
};
[[nodiscard]] std::string progress_line(const MetricsRow& row, LineLook look);
// Returns progress_text() with as many figures as fit, for an evaluation, whose line stays on the
// screen.
[[nodiscard]] std::string evaluation_line(const MetricsRow& row, LineLook look);
// Formats a loss with this many significant digits, but with at least all integer digits: "2.610",
// "0.0001234", "12345".
[[nodiscard]] std::string loss_text(double loss, int digits = 4);
// Formats a duration: "0:07", "12:40", "3:02:11".
[[nodiscard]] std::string duration_text(double seconds);

// Returns the terminal on which this stream can rewrite a line. It is the stream's own terminal, or
// the one that LOCKSTEP_TERMINAL names (a path, or 1 for a terminal without a path), to which the
// reader of this stream forwards all output, including carriage returns. Returns std::nullopt if
// TERM is dumb.
[[nodiscard]] std::optional<std::string> terminal_of(std::FILE* stream);
[[nodiscard]] bool is_terminal(std::FILE* stream);
// Returns the current number of columns: COLUMNS if it is set, otherwise the width of the stream's
// terminal or of the terminal that LOCKSTEP_TERMINAL names, otherwise 80.
[[nodiscard]] int terminal_columns(std::FILE* stream);
// Returns false if NO_COLOR is set to a non-empty value (no-color.org).
[[nodiscard]] bool wants_colours();

// Used only by rank 0, from one thread.
class Progress {
 public:
  // If `in_place`, rewrites one line; otherwise prints a line at most every `plain_interval`.
  explicit Progress(std::FILE* stream = stdout, bool in_place = is_terminal(stdout),
                    std::chrono::milliseconds plain_interval = std::chrono::seconds(10));
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows the row if one is due. A row with a val_loss is always shown and stays on the screen.
  void show(const MetricsRow& row);
  // Shows activity between two rows, if an update is due: "step 250/2000  evaluating 12%".
  void show_text(std::string_view text);
  // Prints a separate line above the progress line.
  void say(std::string_view line);
  // Removes the rewritten line from the screen.
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
