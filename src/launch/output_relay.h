// Relays the ranks' output and the agent's own lines.
#pragma once

#include "base/text.h"
#include "launch/agent.h"
#include "launch/signals.h"
#include "sys/file_descriptor.h"

#include <lockstep/base/deadline.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

// A destination of output: a terminal, a pipe, a file. Never blocks, and stays usable after its
// reader has gone. Queues the bytes that the descriptor cannot take yet. The descriptor is not
// owned and its flags are not changed (the shell shares them): POLLOUT guarantees room for one
// page, so a write is at most one page.
class Sink {
 public:
  explicit Sink(int descriptor);

  // Queues the bytes and writes as many as possible without blocking. Drops them if the sink is
  // lost.
  void write(std::string_view bytes);
  // Writes as many queued bytes as possible without blocking.
  void flush();

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::size_t pending() const { return queue_.size() - sent_; }
  // Returns true if the caller of write() should wait until the queue has drained.
  [[nodiscard]] bool full() const { return pending() > (1 << 20); }
  // Returns the errno of the write that failed permanently (EPIPE: the reader has gone), else 0.
  [[nodiscard]] int lost() const { return lost_; }
  // Returns the errno of the latest write for which there was no room (a full disk), else 0. Its
  // bytes were dropped, and later ones are tried again.
  [[nodiscard]] int no_room() const { return no_room_; }
  // Returns true if both write to the same terminal, pipe or file.
  [[nodiscard]] bool same_place(const Sink& other) const;

 private:
  // Returns the number of bytes written; 0: try again later.
  std::size_t write_some();

  int descriptor_;
  bool regular_file_ = false;
  std::string queue_;
  std::size_t sent_ = 0;  // of queue_
  int lost_ = 0;
  int no_room_ = 0;
};

// The stream that has printed the beginning of an unfinished line. The printers of stdout and
// stderr share it if both are the same terminal.
struct OpenLine {
  static constexpr int nobody = -1;
  int stream = nobody;
};

// Prints the output of many ranks to one terminal, line by line, each with its rank as a prefix.
class Printer {
 public:
  // Both arguments must outlive the printer.
  Printer(Sink& sink, OpenLine& open, PrefixStyle style)
      : sink_(sink), open_(open), style_(style) {}

  // Prints text of `rank`; -1: of a hot spare. The text need not end with a newline. A later text
  // with the same `stream` (a number from 0, one per pipe) continues the line; text of another
  // stream begins a new line.
  void print(int stream, int rank, std::string_view text);
  // Prints one of the agent's own lines.
  void log_line(std::string_view line);

 private:
  Sink& sink_;
  OpenLine& open_;
  PrefixStyle style_;
};

// Returns the offset of the incomplete last line of `text`: the text after the last '\n' (or '\r'
// of a progress bar).
[[nodiscard]] std::size_t unfinished(std::string_view text);

// The last lines that a rank has printed, for the report of its failure.
class LastLines {
 public:
  // Adds bytes in the order in which they arrive from one of the rank's streams.
  void add(int stream, std::string_view bytes);

  // Returns at most `most` lines, the oldest first, fit for a terminal: only the last state of a
  // line that was overwritten by '\r', control characters made visible, long lines truncated.
  [[nodiscard]] std::vector<std::string> lines(std::size_t most) const;

 private:
  static constexpr std::size_t kept = 32 << 10;

  std::string tail_;
  int stream_ = -1;
};

// A line of the library's log on a rank's standard error:
// "14:03:21.042 [rank 2] error: TEXT"; if the group has one rank, without "[rank 2] ".
struct LogLine {
  std::string_view time;  // "14:03:21.042 "
  std::optional<std::int64_t> rank;
  std::string_view rest;  // "error: TEXT"
};

// Returns std::nullopt for any other line.
inline std::optional<LogLine> parse_log_line(std::string_view line) {
  constexpr std::string_view form = "00:00:00.000 ";  // '0' stands for a digit
  constexpr std::string_view begin = "[rank ", end = "] ";
  const auto fits = [](char of_form, char found) {
    return of_form == '0' ? found >= '0' && found <= '9' : found == of_form;
  };
  if (line.size() < form.size() || !std::ranges::equal(form, line.substr(0, form.size()), fits))
    return std::nullopt;
  LogLine parsed{.time = line.substr(0, form.size()), .rank = {}, .rest = line.substr(form.size())};
  if (!parsed.rest.starts_with(begin)) return parsed;
  const std::size_t close = parsed.rest.find(end);
  if (close == std::string_view::npos) return std::nullopt;
  parsed.rank = parse_integer(parsed.rest.substr(begin.size(), close - begin.size()));
  if (!parsed.rank) return std::nullopt;
  parsed.rest.remove_prefix(close + end.size());
  return parsed;
}

// Shows a failure that ends several ranks once. Ranks of a failed group print the reason as one
// line of the library's log on standard error, all with the same sentence (rank_env::failure_mark),
// and most programs then print the exception as well. Hides only lines that say nothing else:
//  - the line of the log, if its sentence has been shown already;
//  - a line with only the sentence, or with the sentence after the text of the C++ runtime or of
//    our own programs;
//  - a line that ends with the sentence, if the same line has been shown before, so that text in
//    front of the sentence is shown once;
//  - the line with which one of our programs explains its exit, if another rank has printed the
//    same sentence ("lockstep train: rank 1: SENTENCE").
class SharedFailures {
 public:
  struct Failure {
    std::string sentence;
    std::vector<int> ranks;     // ranks that printed it, in order
    bool is_complaint = false;  // one of our programs' errors, not a group failure
  };

  // Returns the part of `text` to show. `text` contains lines of that rank's standard error; the
  // last line may be incomplete.
  [[nodiscard]] std::string take(int rank, std::string_view text);
  // Returns true if the line (without its end) only repeats or announces a sentence that has been
  // shown.
  [[nodiscard]] bool is_repeated(std::string_view line) const;
  [[nodiscard]] const std::vector<Failure>& failures() const { return failures_; }
  // Returns true if one of our programs has explained its exit on this rank.
  [[nodiscard]] bool has_complained(int rank) const;

 private:
  [[nodiscard]] bool is_new(std::string_view sentence, int rank, bool is_complaint);
  [[nodiscard]] bool shows(int rank, std::string_view line);
  [[nodiscard]] bool ends_with_one(std::string_view line) const;

  std::vector<Failure> failures_;
  std::set<std::string, std::less<>> shown_;  // lines that end with one of the sentences
};

struct LogFile {
  std::string name = {};  // empty: none
  bool append = false;    // to the content from an earlier round
};

// The output of one rank: read from its two pipes, written to its log, shown line by line.
class RankOutput {
 public:
  // An unfinished line is shown after this time if it was flushed on purpose, or if it is longer
  // than longest_line.
  static constexpr std::chrono::milliseconds partial_line_timeout{100};
  static constexpr std::size_t longest_line = 64 << 10;

  // Creates or truncates the log. Throws SystemError if that fails, BadInput if the path exists and
  // is not a regular file. If a log of an earlier round cannot be opened again, does not throw:
  // take_log_error() returns the error. The ranks share `failures`, which must outlive this object.
  RankOutput(int rank, Printer& output, Printer& error, SharedFailures& failures,
             const LogFile& log);
  // Opens a log for a rank that has none yet.
  void begin_log(const LogFile& log);
  // Sets the rank for lines that are shown from now on.
  void set_rank(int rank) { rank_ = rank; }

  // The constructor makes the pipes; spawn() uses the rank's ends, and close_rank_ends() closes
  // them.
  [[nodiscard]] int rank_output() const { return streams_[0].write_end.get(); }
  [[nodiscard]] int rank_error() const { return streams_[1].write_end.get(); }
  void close_rank_ends();

  // Returns a descriptor to poll and read, -1 once closed.
  [[nodiscard]] int descriptor(int stream) const { return streams_[stream].read_end.get(); }
  // Reads the available bytes of one of the two streams, at most about 256 KiB; never blocks.
  void read(int stream, Clock::time_point now);
  // Reads all available bytes and shows them, including unfinished lines.
  void finish();
  // Shows unfinished lines that have waited long enough; returns the time of the next call.
  Deadline show_unfinished(Clock::time_point now);

  [[nodiscard]] const LastLines& last_lines() const { return last_lines_; }
  // Returns true if there is a last line on standard error that may explain the rank's exit: any
  // line except one of the library's log.
  [[nodiscard]] bool says_why() const;
  [[nodiscard]] const std::string& log_file() const { return log_file_; }
  // Returns the errno of a failed log write, or of a failed attempt to open the log, once, else 0.
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
  const int first_source_;  // for the printers: hot spares have no rank
  Printer* printers_[2];
  SharedFailures& failures_;
  Stream streams_[2];
  LastLines last_lines_, last_errors_;
  std::string log_file_;
  sys::FileDescriptor log_;
  int log_error_ = 0;
};

// Prefix of each of the agent's own lines.
inline constexpr const char* speaker = "lockstep run: ";

// The output of all ranks, and the agent's own lines.
class OutputRelay {
 public:
  // Serves the run of `spec`, which must outlive this object.
  explicit OutputRelay(const WorkerSpec& spec);

  // For RankOutput.
  [[nodiscard]] Printer& output() { return output_printer_; }
  [[nodiscard]] Printer& error() { return error_printer_; }
  [[nodiscard]] SharedFailures& failures() { return failures_; }

  // Prints one of the agent's own lines. Sanitises it, because parts may come from ranks and other
  // nodes.
  void log_line(const std::string& line);
  // Polls the sinks and writes queued bytes as soon as their readers take them.
  void watch(Poller& poller);
  // Polls the rank's pipes and reads them, unless the output must wait for a reader.
  void watch(Poller& poller, RankOutput& rank);
  // Shows unfinished lines of the ranks; returns the time of the next call.
  [[nodiscard]] static Deadline show_unfinished(const std::vector<RankOutput*>& ranks,
                                                Clock::time_point now);
  // Reports each loss of output once. Returns true, once, if the reader of standard output has
  // closed it and the run should therefore stop.
  [[nodiscard]] bool log_losses(const std::vector<RankOutput*>& ranks);
  // Writes the queued bytes at the reader's speed, until `interrupted` or until the reader takes
  // nothing for a while.
  void drain(const std::function<void(Poller&)>& watch_signals, const bool& interrupted);

 private:
  const WorkerSpec& spec_;
  Sink output_, error_;
  OpenLine output_line_, error_line_;
  Printer output_printer_, error_printer_;
  SharedFailures failures_;
  bool loss_said_ = false, no_room_said_ = false;
};

}  // namespace lockstep::launch
