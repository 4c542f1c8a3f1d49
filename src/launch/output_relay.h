// Where the ranks' output goes, and the agent's own lines.
#pragma once

#include "base/text.h"
#include "launch/agent.h"
#include "launch/poller.h"
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

// Where output goes: a terminal, a pipe, a file. Never blocks, and outlives a reader that has gone.
// Holds what the descriptor cannot take yet. The descriptor is not owned and its flags are not
// touched (the shell shares them): POLLOUT promises room for one page, so no more than that is
// written at a time.
class Sink {
 public:
  explicit Sink(int descriptor);

  // Queues the bytes and writes what can be written now. Dropped when the sink is lost.
  void write(std::string_view bytes);
  // Writes what can be written now.
  void flush();

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::size_t pending() const { return queue_.size() - sent_; }
  // The caller of write() should wait until it has drained.
  [[nodiscard]] bool full() const { return pending() > (1 << 20); }
  // errno of the write that failed for good (EPIPE: the reader has gone), else 0.
  [[nodiscard]] int lost() const { return lost_; }
  // Both write to the same terminal, pipe or file.
  [[nodiscard]] bool same_place(const Sink& other) const;

 private:
  // Bytes written; 0: not now.
  std::size_t write_some();

  int descriptor_;
  bool regular_file_ = false;
  std::string queue_;
  std::size_t sent_ = 0;  // of queue_
  int lost_ = 0;
};

// Which rank has printed the beginning of a line that is not finished yet. Shared by the printers
// of stdout and stderr where both are the same terminal.
struct OpenLine {
  static constexpr int nobody = -1;
  int stream = nobody;
};

// Puts the output of many ranks onto one terminal, line by line, each with its rank in front.
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

// The end of what a rank has printed, for the report of its failure.
class LastLines {
 public:
  // Bytes as they come from one of the rank's streams.
  void add(int stream, std::string_view bytes);

  // At most `most` lines, the oldest first, made fit for a terminal: of a line that was overwritten
  // by '\r' the last state, control characters made visible, long lines cut.
  [[nodiscard]] std::vector<std::string> lines(std::size_t most) const;

 private:
  static constexpr std::size_t kept = 32 << 10;

  std::string tail_;
  int stream_ = -1;
};

// A line of the library's log on a rank's standard error:
// "14:03:21.042 [rank 2] error: TEXT"; a rank that is alone has no "[rank 2] ".
struct LogLine {
  std::string_view time;  // "14:03:21.042 "
  std::optional<std::int64_t> rank;
  std::string_view rest;  // "error: TEXT"
};

// Nothing for any other line.
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

// A failure that ends several ranks is shown once. Ranks whose group dies say why in one line of
// the library's log on standard error, all in the same words (rank_env::failure_mark), and most
// programs then print the exception as well. Only lines that say nothing else are hidden:
//  - the log's line, when its sentence was shown already;
//  - the sentence alone, or after the words of the C++ runtime or of our own programs;
//  - a line that ends with the sentence and has been shown before, letter by letter: what a program
//    puts before the sentence is shown once;
//  - the line by which one of our programs says why it ends ("lockstep train: rank 1: SENTENCE"),
//    when another rank's said the same.
class SharedFailures {
 public:
  struct Failure {
    std::string sentence;
    std::vector<int> ranks;     // that said it, in the order in which they did
    bool is_complaint = false;  // of one of our programs, and not of a group that has failed
  };

  // What is to be shown of `text`, which are lines of that rank's standard error; the last one may
  // lack its end.
  [[nodiscard]] std::string take(int rank, std::string_view text);
  // Whether the line only repeats what was shown, or announces it. Without its end.
  [[nodiscard]] bool is_repeated(std::string_view line) const;
  [[nodiscard]] const std::vector<Failure>& failures() const { return failures_; }
  // Returns true if one of our programs has said on this rank why it ends.
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
  bool append = false;    // to what an earlier round has left there
};

// The output of one rank: read from its two pipes, kept in its log, shown by lines.
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

// Goes before each of the agent's own lines.
inline constexpr const char* speaker = "lockstep run: ";

// The output of all ranks, and the agent's own lines.
class OutputRelay {
 public:
  // Of the run of `spec`, which outlives this.
  explicit OutputRelay(const WorkerSpec& spec);

  // For RankOutput.
  [[nodiscard]] Printer& output() { return output_printer_; }
  [[nodiscard]] Printer& error() { return error_printer_; }
  [[nodiscard]] SharedFailures& failures() { return failures_; }

  // Prints a line of the agent's own. Much of it may have come from ranks and other nodes.
  void say(const std::string& line);
  // Writes what is left as soon as the readers take it.
  void watch(Poller& poller);
  // Reads what a rank prints, unless that must wait for a reader.
  void watch(Poller& poller, RankOutput& rank);
  // Shows lines of the ranks that are not finished; when to call again.
  [[nodiscard]] static Deadline show_unfinished(const std::vector<RankOutput*>& ranks,
                                                Clock::time_point now);
  // Says once what is lost because it cannot be written. Returns true, once, if the reader of
  // standard output has gone and the run is to stop with it.
  [[nodiscard]] bool say_losses(const std::vector<RankOutput*>& ranks);
  // Writes what is left, as slowly as the reader takes it, until `interrupted` or until the reader
  // takes nothing at all for a while.
  void drain(const std::function<void(Poller&)>& watch_signals, const bool& interrupted);

 private:
  const WorkerSpec& spec_;
  Sink output_, error_;
  OpenLine output_line_, error_line_;
  Printer output_printer_, error_printer_;
  SharedFailures failures_;
  bool loss_said_ = false;
};

}  // namespace lockstep::launch
