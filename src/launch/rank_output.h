// The output of one rank: read from its two pipes, kept in its log, shown by lines.
#pragma once

#include "launch/last_lines.h"
#include "launch/printer.h"
#include "launch/shared_failures.h"
#include "sys/file_descriptor.h"

#include <lockstep/base/deadline.h>

#include <string>

namespace lockstep::launch {

struct LogFile {
  std::string name = {};  // empty: none
  bool append = false;    // to what an earlier round has left there
};

class RankOutput {
 public:
  // A line that is begun but not ended is shown after this time where it was flushed so, or when it
  // is longer than that.
  static constexpr std::chrono::milliseconds partial_line_timeout{100};
  static constexpr std::size_t longest_line = 64 << 10;

  // The log is created, or emptied. SystemError when it cannot be, BadInput when it is there and is
  // no regular file. `failures`, which outlives this, is shared by the ranks.
  RankOutput(int rank, Printer& output, Printer& error, SharedFailures& failures,
             const LogFile& log);
  // Of a rank that has none yet.
  void begin_log(const LogFile& log);
  // Of the lines that are shown from now on.
  void set_rank(int rank) { rank_ = rank; }

  // Makes the pipes; the rank's ends are for spawn() and are given up by close_rank_ends().
  [[nodiscard]] int rank_output() const { return streams_[0].write_end.get(); }
  [[nodiscard]] int rank_error() const { return streams_[1].write_end.get(); }
  void close_rank_ends();

  // For poll(): descriptors to read from, -1 once closed.
  [[nodiscard]] int descriptor(int stream) const { return streams_[stream].read_end.get(); }
  // Reads what is there from one of the two, at most about a quarter of a megabyte; never blocks.
  void read(int stream, Clock::time_point now);
  // Reads all that is there and shows all of it, unfinished lines too.
  void finish();
  // Shows unfinished lines that have waited long enough; when to call again.
  Deadline show_unfinished(Clock::time_point now);

  [[nodiscard]] const LastLines& last_lines() const { return last_lines_; }
  // Returns true if the last line on standard error may be the reason why the rank has ended: if
  // there is one, and it is not a line of the library's log.
  [[nodiscard]] bool says_why() const;
  [[nodiscard]] const std::string& log_file() const { return log_file_; }
  // errno of the log write that failed, once, else 0.
  [[nodiscard]] int take_log_error() { return std::exchange(log_error_, 0); }

 private:
  struct Stream {
    sys::FileDescriptor read_end, write_end;
    std::size_t taken = 0;  // bytes read so far
    std::string waiting;    // an unfinished line
    Clock::time_point waiting_since;
  };

  void take(int stream, std::string_view bytes, Clock::time_point now);
  void show(int stream, std::size_t size);
  void write_log(std::string_view bytes);

  int rank_;
  const int
      first_source_;  // for the printers: processes in reserve have no rank to tell them apart
  Printer* printers_[2];
  SharedFailures& failures_;
  Stream streams_[2];
  LastLines last_lines_, last_errors_;
  std::string log_file_;
  sys::FileDescriptor log_;
  int log_error_ = 0;
};

}  // namespace lockstep::launch
