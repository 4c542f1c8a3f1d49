#include "launch/output_relay.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "launch/environment.h"
#include "sys/signals.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace lockstep::launch {

namespace {
constexpr std::size_t page = 4096;
}

Sink::Sink(int descriptor) : descriptor_(descriptor) {
  struct stat place = {};
  if (::fstat(descriptor, &place) != 0) lost_ = errno;
  regular_file_ = S_ISREG(place.st_mode);
}

void Sink::write(std::string_view bytes) {
  if (lost_ != 0) return;
  queue_.append(bytes);
  flush();
}

void Sink::flush() {
  while (lost_ == 0 && pending() > 0) {
    const std::size_t written = write_some();
    if (written == 0) break;
    sent_ += written;
  }
  if (lost_ != 0 || pending() == 0) {
    queue_.clear();
    sent_ = 0;
  } else if (sent_ > queue_.size() / 2) {
    queue_.erase(0, sent_);
    sent_ = 0;
  }
}

bool Sink::same_place(const Sink& other) const {
  struct stat mine = {}, theirs = {};
  return ::fstat(descriptor_, &mine) == 0 && ::fstat(other.descriptor_, &theirs) == 0 &&
         mine.st_dev == theirs.st_dev && mine.st_ino == theirs.st_ino;
}

std::size_t Sink::write_some() {
  pollfd room{descriptor_, POLLOUT, 0};
  if (!regular_file_ && ::poll(&room, 1, 0) <= 0) return 0;
  const std::size_t size = regular_file_ ? pending() : std::min(pending(), page);
  const ssize_t written = ::write(descriptor_, queue_.data() + sent_, size);
  if (written >= 0) return static_cast<std::size_t>(written);
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    no_room_ = errno;
    return size;
  }
  if (errno != EAGAIN && errno != EINTR) lost_ = errno;
  return 0;
}

namespace {

constexpr std::string_view line_ends = "\n\r";

// Returns the length of the first line including its end; "\r\n" is one end.
std::size_t first_line(std::string_view text) {
  const std::size_t end = text.find_first_of(line_ends);
  if (end == std::string_view::npos) return text.size();
  return end + (text.substr(end, 2) == "\r\n" ? 2 : 1);
}

}  // namespace

std::size_t unfinished(std::string_view text) {
  // A '\r' at the very end may be half of "\r\n": the next byte decides whether the line is
  // complete.
  const std::size_t limit = text.ends_with('\r') ? text.size() - 1 : text.size();
  const std::size_t end = text.substr(0, limit).find_last_of(line_ends);
  return end == std::string_view::npos ? 0 : end + 1;
}

void Printer::print(int stream, int rank, std::string_view text) {
  if (text.empty()) return;
  if (style_ == PrefixStyle::none) return sink_.write(text);
  const std::string prefix = rank < 0 ? "[hot spare] " : "[rank " + std::to_string(rank) + "] ";
  std::string block;
  if (open_.stream != stream && open_.stream != OpenLine::nobody) block += '\n';
  bool at_start = open_.stream != stream;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, first_line(text));
    if (at_start) block += prefix;
    block += line;
    text.remove_prefix(line.size());
    at_start = line_ends.find(line.back()) != std::string_view::npos;
  }
  open_.stream = at_start ? OpenLine::nobody : stream;
  sink_.write(block);
}

void Printer::log_line(std::string_view line) {
  std::string block;
  if (open_.stream != OpenLine::nobody) block += '\n';
  open_.stream = OpenLine::nobody;
  sink_.write(block.append(line) + "\n");
}

namespace {

constexpr std::size_t longest_line = 500;

std::string presentable(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t overwritten = line.rfind('\r');
  if (overwritten != std::string_view::npos) line.remove_prefix(overwritten + 1);
  return escaped_line(line, longest_line);
}

}  // namespace

void LastLines::add(int stream, std::string_view bytes) {
  if (bytes.empty()) return;
  if (stream != stream_ && !tail_.empty() && tail_.back() != '\n') tail_ += '\n';
  stream_ = stream;
  tail_.append(bytes.size() > kept ? bytes.substr(bytes.size() - kept) : bytes);
  if (tail_.size() > 2 * kept) tail_.erase(0, tail_.size() - kept);
}

std::vector<std::string> LastLines::lines(std::size_t most) const {
  std::vector<std::string> found;
  std::string_view rest = tail_;
  if (rest.ends_with('\n')) rest.remove_suffix(1);
  while (!rest.empty() && found.size() < most) {
    const std::size_t before = rest.rfind('\n');
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    found.push_back(presentable(rest.substr(begin)));
    rest = rest.substr(0, begin == 0 ? 0 : before);
  }
  std::reverse(found.begin(), found.end());
  return found;
}

namespace {

constexpr std::size_t most_failures = 100, most_shown = 1000;

// The text that the C++ runtime prints before the message of an uncaught exception.
constexpr std::string_view announcement =
    "terminate called after throwing an instance of 'lockstep::";
constexpr std::string_view before_text = "  what():  ";

bool take(std::string_view& text, std::string_view words) {
  if (!text.starts_with(words)) return false;
  text.remove_prefix(words.size());
  return true;
}

// Returns the number of leading characters between `least` and `most`.
std::size_t run_of(std::string_view text, char least, char most) {
  return static_cast<std::size_t>(
      std::ranges::find_if(text, [=](char c) { return c < least || c > most; }) - text.begin());
}

// Returns the sentence of a line "14:03:21.042 [rank 2] error: the group failed: SENTENCE", or an
// empty string for any other line. The path of the flight record is cut off because it differs per
// rank.
std::string_view marked_sentence(std::string_view line) {
  const auto parsed = parse_log_line(line);
  if (!parsed) return {};
  std::string_view rest = parsed->rest;
  if (!take(rest, "error: ") || !take(rest, rank_env::failure_mark)) return {};
  return rest.substr(0, rest.rfind(rank_env::flight_record_mark));
}

// Returns the sentence of "lockstep train: SENTENCE" or "lockstep train: rank 2: SENTENCE", with
// which a program explains its exit, or an empty string for any other line. Lines of "lockstep
// run", from an agent among the ranks, do not count.
std::string_view complaint(std::string_view line) {
  if (!take(line, "lockstep ") || line.starts_with("run: ")) return {};
  line.remove_prefix(run_of(line, 'a', 'z'));
  if (!take(line, ": ")) return {};
  std::string_view behind_rank = line;
  if (!take(behind_rank, "rank ")) return line;
  behind_rank.remove_prefix(run_of(behind_rank, '0', '9'));
  return take(behind_rank, ": ") ? behind_rank : line;
}

}  // namespace

std::string SharedFailures::take(int rank, std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const std::size_t size = std::min(text.size(), line.size() + 1);
    if (shows(rank, line)) shown += text.substr(0, size);
    text.remove_prefix(size);
  }
  return shown;
}

bool SharedFailures::shows(int rank, std::string_view line) {
  const std::string_view sentence = marked_sentence(line);
  if (!sentence.empty()) return is_new(sentence, rank, /*is_complaint=*/false);
  const std::string_view own = complaint(line);
  if (!own.empty() && !ends_with_one(line)) return is_new(own, rank, /*is_complaint=*/true);
  if (is_repeated(line)) return false;
  if (ends_with_one(line) && shown_.size() < most_shown) shown_.emplace(line);
  return true;
}

bool SharedFailures::is_new(std::string_view sentence, int rank, bool is_complaint) {
  const auto known = std::ranges::find(failures_, sentence, &Failure::sentence);
  if (known == failures_.end()) {
    if (failures_.size() < most_failures)
      failures_.push_back({std::string(sentence), {rank}, is_complaint});
    return true;
  }
  if (std::find(known->ranks.begin(), known->ranks.end(), rank) == known->ranks.end())
    known->ranks.push_back(rank);
  return false;
}

bool SharedFailures::ends_with_one(std::string_view line) const {
  return std::ranges::any_of(failures_, [&](const Failure& one) {
    return !one.is_complaint && line.ends_with(one.sentence);
  });
}

bool SharedFailures::has_complained(int rank) const {
  return std::ranges::any_of(failures_, [&](const Failure& one) {
    return one.is_complaint && std::ranges::find(one.ranks, rank) != one.ranks.end();
  });
}

bool SharedFailures::is_repeated(std::string_view line) const {
  const bool announces = line.starts_with(announcement) && line.ends_with("'");
  if (shown_.contains(line)) return true;
  const std::string_view marked = marked_sentence(line), own = complaint(line);
  return std::ranges::any_of(failures_, [&](const Failure& one) {
    if (marked == one.sentence || own == one.sentence) return true;
    if (one.is_complaint) return false;
    if (announces) return true;
    if (!line.ends_with(one.sentence)) return false;
    const std::string_view words = line.substr(0, line.size() - one.sentence.size());
    return words.empty() || words == before_text;
  });
}

namespace {

// The buffer size of stdio for a pipe. A stream that pauses at a multiple of this size probably
// paused in the middle of a line; a stream that pauses elsewhere was flushed on purpose, for
// example after a prompt.
constexpr std::size_t stdio_buffer = 4096;

// Only the agent's end is non-blocking: a rank must get an ordinary pipe.
void make_pipe(sys::FileDescriptor& read_end, sys::FileDescriptor& write_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("making a pipe for a rank's output", errno);
  read_end.reset(ends[0]);
  write_end.reset(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
}

// Rejects anything but a regular file: a FIFO or a device of that name could block the agent, or
// discard the log. The file is truncated only after this check.
sys::FileDescriptor open_log(const std::string& name, bool append) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | O_NONBLOCK;
  sys::FileDescriptor log(::open(name.c_str(), flags, 0666));
  const int error = errno;
  struct stat found = {};
  const bool exists = log ? ::fstat(log.get(), &found) == 0 : ::stat(name.c_str(), &found) == 0;
  check_input(!exists || S_ISREG(found.st_mode) || S_ISDIR(found.st_mode),
              "the log {}: expected a regular file, found a FIFO, a socket or a device; remove it, "
              "or name another log folder",
              name);
  if (!log) throw SystemError("opening the log " + name, error);
  if (!append && ::ftruncate(log.get(), 0) != 0)
    throw SystemError("emptying the log " + name, errno);
  return log;
}

bool readable(int descriptor) {
  pollfd entry{descriptor, POLLIN, 0};
  return descriptor >= 0 && ::poll(&entry, 1, 0) > 0;
}

// Returns the first of two numbers, for two streams, that no other object uses.
int next_sources() {
  static std::atomic<int> next = 0;
  return next.fetch_add(2);
}

}  // namespace

RankOutput::RankOutput(int rank, Printer& output, Printer& error, SharedFailures& failures,
                       const LogFile& log)
    : rank_(rank), first_source_(next_sources()), printers_{&output, &error}, failures_(failures) {
  for (Stream& stream : streams_) make_pipe(stream.read_end, stream.write_end);
  begin_log(log);
}

void RankOutput::begin_log(const LogFile& log) {
  log_file_ = log.name;
  if (log_file_.empty()) return;
  try {
    log_ = open_log(log_file_, log.append);
  } catch (const SystemError& error) {
    if (!log.append) throw;
    log_error_ = error.error_number();
  } catch (const BadInput&) {
    if (!log.append) throw;
    log_error_ = EINVAL;  // something that is no file is there now
  }
}

void RankOutput::close_rank_ends() {
  for (Stream& stream : streams_) stream.write_end.reset();
}

void RankOutput::read(int stream, Clock::time_point now) {
  char buffer[64 << 10];
  sys::FileDescriptor& from = streams_[stream].read_end;
  for (int round = 0; round < 4 && from; ++round) {
    const ssize_t size = ::read(from.get(), buffer, sizeof(buffer));
    if (size > 0) take(stream, std::string_view(buffer, static_cast<std::size_t>(size)), now);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) from.reset();
  }
}

void RankOutput::finish() {
  for (int stream = 0; stream < 2; ++stream) {
    // Read only the bytes that the pipe held when its writers ended; writers that are still alive
    // must not block the agent here.
    for (int round = 0; round < 8; ++round) read(stream, Clock::now());
    show(stream, streams_[stream].waiting.size());
  }
}

Deadline RankOutput::show_unfinished(Clock::time_point now) {
  Deadline next = Deadline::never();
  for (int stream = 0; stream < 2; ++stream) {
    Stream& from = streams_[stream];
    if (from.waiting.empty() || from.taken % stdio_buffer == 0) continue;
    const Duration left = from.waiting_since + partial_line_timeout - now;
    if (left <= Duration::zero()) {
      if (readable(from.read_end.get())) continue;  // end-of-file may follow
      show(stream, from.waiting.size());
    } else {
      next = next.or_sooner(Deadline::after(left));
    }
  }
  return next;
}

void RankOutput::take(int stream, std::string_view bytes, Clock::time_point now) {
  write_log(bytes);
  last_lines_.add(stream, bytes);
  if (stream == 1) last_errors_.add(stream, bytes);
  Stream& to = streams_[stream];
  to.taken += bytes.size();
  if (to.waiting.empty()) to.waiting_since = now;
  to.waiting.append(bytes);
  std::size_t ready = unfinished(to.waiting);
  if (to.waiting.size() - ready > longest_line) ready = to.waiting.size();
  if (ready == 0) return;
  show(stream, ready);
  to.waiting_since = now;
}

void RankOutput::show(int stream, std::size_t size) {
  Stream& from = streams_[stream];
  const std::string_view text = std::string_view(from.waiting).substr(0, size);
  const int source = first_source_ + stream;
  if (stream == 0) {
    printers_[stream]->print(source, rank_, text);
  } else {
    printers_[stream]->print(source, rank_, failures_.take(rank_, text));
  }
  from.waiting.erase(0, size);
}

bool RankOutput::says_why() const {
  const std::vector<std::string> lines = last_errors_.lines(1);
  return !lines.empty() && !lines[0].empty() && !parse_log_line(lines[0]) &&
         !failures_.is_repeated(lines[0]);
}

void RankOutput::write_log(std::string_view bytes) {
  const sys::ScopedSignalBlock quiet(SIGXFSZ);
  while (log_ && !bytes.empty()) {
    const ssize_t written = ::write(log_.get(), bytes.data(), bytes.size());
    if (written > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      log_error_ = errno;
      log_.reset();
    }
  }
}

OutputRelay::OutputRelay(const WorkerSpec& spec)
    : spec_(spec),
      output_(spec.output),
      error_(spec.error),
      output_printer_(output_, output_line_, spec.prefix),
      error_printer_(error_, error_.same_place(output_) ? output_line_ : error_line_, spec.prefix) {
}

void OutputRelay::log_line(const std::string& line) {
  error_printer_.log_line(speaker + escaped_line(line));
}

void OutputRelay::watch(Poller& poller) {
  for (Sink* sink : {&output_, &error_})
    if (sink->pending() > 0) poller.watch(sink->descriptor(), POLLOUT, [sink] { sink->flush(); });
}

void OutputRelay::watch(Poller& poller, RankOutput& rank) {
  if (output_.full() || error_.full()) return;  // let the rank wait, as for a slow terminal
  for (int stream = 0; stream < 2; ++stream)
    poller.watch(rank.descriptor(stream), POLLIN,
                 [&rank, stream] { rank.read(stream, Clock::now()); });
}

Deadline OutputRelay::show_unfinished(const std::vector<RankOutput*>& ranks,
                                      Clock::time_point now) {
  Deadline wake = Deadline::never();
  for (RankOutput* rank : ranks) wake = wake.or_sooner(rank->show_unfinished(now));
  return wake;
}

bool OutputRelay::log_losses(const std::vector<RankOutput*>& ranks) {
  for (RankOutput* rank : ranks)
    if (const int error = rank->take_log_error())
      log_line(formatted("cannot write {}: {}; the rank continues without it", rank->log_file(),
                         std::strerror(error)));
  const char* left = spec_.log_folder.empty() ? "dropped" : "only in their logs";
  if (output_.no_room() != 0 && !std::exchange(no_room_said_, true))
    log_line(
        formatted("cannot write to standard output ({}); the ranks continue, and what does "
                  "not fit is {}",
                  std::strerror(output_.no_room()), left));
  if (output_.lost() == 0 || std::exchange(loss_said_, true)) return false;
  log_line(formatted("standard output is closed ({}); {}", std::strerror(output_.lost()),
                     spec_.stop_without_reader
                         ? "stopping the ranks"
                         : formatted("the ranks continue, and their output is {}", left)));
  return spec_.stop_without_reader;
}

void OutputRelay::drain(const std::function<void(Poller&)>& watch_signals,
                        const bool& interrupted) {
  const auto pending = [&] { return output_.pending() + error_.pending(); };
  std::size_t left = pending();
  Deadline output_deadline = Deadline::after(spec_.output_timeout);
  while (left > 0 && !interrupted && !output_deadline.passed()) {
    Poller poller;
    watch_signals(poller);
    watch(poller);
    poller.wait(output_deadline);
    if (pending() == left) continue;
    left = pending();
    output_deadline = Deadline::after(spec_.output_timeout);
  }
  if (output_.pending() > 0 && error_.pending() == 0 && !interrupted)
    log_line(formatted("the reader of standard output read nothing for {}: {} were dropped",
                       format_duration(spec_.output_timeout),
                       format_bytes(static_cast<std::int64_t>(output_.pending()))));
}

}  // namespace lockstep::launch
