#include "launch/rank_output.h"

#include "base/check.h"
#include "launch/log_line.h"
#include "sys/error_instead_of_signal.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace lockstep::launch {

namespace {

// What the C library collects for a pipe. A stream that stops at a multiple of it has stopped by
// chance, in the middle of a line; one that stops elsewhere was flushed on purpose: a question.
constexpr std::size_t stdio_buffer = 4096;

// Only the agent's end does not block: a rank must find the pipe it expects.
void make_pipe(sys::FileDescriptor& read_end, sys::FileDescriptor& write_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("making a pipe for a rank's output", errno);
  read_end.reset(ends[0]);
  write_end.reset(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
}

// A FIFO or a device of that name could hold the agent up, or take what was meant to be kept. What
// the file held is dropped only once it is known to be a file.
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

// Two numbers, for two streams, that no other object has had.
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
  if (!log_file_.empty()) log_ = open_log(log_file_, log.append);
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
    // What is left is what the pipe held when its writers had ended; writers that live on must not
    // keep us here.
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
      if (readable(from.read_end.get())) continue;  // its end may be on its way
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
  const sys::ErrorInsteadOfSignal quiet(SIGXFSZ);
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

}  // namespace lockstep::launch
