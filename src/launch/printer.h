// Puts the output of many ranks onto one terminal, line by line, each with its rank in front.
#pragma once

#include "launch/agent.h"
#include "launch/sink.h"

#include <string>
#include <string_view>

namespace lockstep::launch {

// Which rank has printed the beginning of a line that is not finished yet. Shared by the printers
// of stdout and stderr where both are the same terminal.
struct OpenLine {
  static constexpr int nobody = -1;
  int stream = nobody;
};

class Printer {
 public:
  // Both outlive the printer.
  Printer(Sink& sink, OpenLine& open, PrefixStyle style)
      : sink_(sink), open_(open), style_(style) {}

  // Prints text of `rank`; -1: of a process in reserve. It need not end with a line's end; `stream`
  // (a number from 0, one for each pipe) says which later text continues it. Text of another stream
  // then begins on a new line.
  void print(int stream, int rank, std::string_view text);
  // Prints a line of the agent's own.
  void say(std::string_view line);

 private:
  Sink& sink_;
  OpenLine& open_;
  PrefixStyle style_;
};

// Where the last line of `text` begins that has no end ('\n', or the '\r' of progress bars) yet.
[[nodiscard]] std::size_t unfinished(std::string_view text);

}  // namespace lockstep::launch
