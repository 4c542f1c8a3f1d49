#include "apps/bench/rank_processes.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/launch/environment.h>

#include "launch/meeting_point.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

namespace lockstep::apps {
namespace {

struct Pipe {
  sys::FileDescriptor read;
  sys::FileDescriptor write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  return {sys::FileDescriptor(ends[0]), sys::FileDescriptor(ends[1])};
}

// Open for both directions, so that it opens before the rank has and never reads as ended: that is
// seen by the end of the processes.
sys::FileDescriptor make_fifo(const std::filesystem::path& path) {
  if (::mkfifo(path.c_str(), 0600) != 0)
    throw SystemError("cannot make the fifo " + path.string(), errno);
  sys::FileDescriptor end(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!end) throw SystemError("cannot open the fifo " + path.string(), errno);
  return end;
}

launch::Environment with_settings(const RankCommand& command) {
  auto settings = command.variables;
  settings.emplace_back(launch::variable::omp_threads, std::to_string(command.threads));
  // An idle system must leave the cores to the one that is measured.
  settings.emplace_back(launch::variable::omp_wait_policy, "passive");
  launch::Environment environment;
  for (auto& [name, value] : launch::current_environment())
    if (std::ranges::none_of(settings, [&](const auto& set) { return set.first == name; }))
      environment.emplace_back(name, value);
  environment.insert(environment.end(), settings.begin(), settings.end());
  return environment;
}

std::vector<std::string> as_entries(const launch::Environment& environment) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : environment) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<std::string> words_of(const RankCommand& command) {
  std::vector<std::string> words{command.program};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  return words;
}

}  // namespace

RankProcesses RankProcesses::start_each(const RankCommand& command) {
  RankProcesses started(command.name);
  int port = launch::free_port();
  for (int rank = 0; rank < command.ranks; ++rank) {
    launch::RankPlace place{.rank = rank,
                            .ranks = command.ranks,
                            .master_port = port,
                            .run_id = "bench-" + command.name};
    Pipe in = make_pipe(), out = make_pipe();
    started.processes_.push_back(sys::Process::spawn(
        {.file = command.program,
         .arguments = words_of(command),
         .environment = as_entries(launch::rank_environment(with_settings(command), place)),
         .input = in.read.get(),
         .output = out.write.get(),
         .end_with_parent = true}));
    started.channels_.push_back({std::move(in.write), std::move(out.read)});
  }
  return started;
}

RankProcesses RankProcesses::start_by_launcher(const RankCommand& command,
                                               const std::filesystem::path& folder) {
  RankProcesses started(command.name);
  for (int rank = 0; rank < command.ranks; ++rank)
    started.channels_.push_back({make_fifo(folder / formatted("in.{}", rank)),
                                 make_fifo(folder / formatted("out.{}", rank))});
  Pipe silence = make_pipe();  // a launcher may not read what the caller types
  started.processes_.push_back(
      sys::Process::spawn({.file = command.program,
                           .arguments = words_of(command),
                           .environment = as_entries(with_settings(command)),
                           .input = silence.read.get(),
                           .output = STDERR_FILENO,
                           .end_with_parent = true}));
  return started;
}

RankProcesses::~RankProcesses() {
  for (Channel& channel : channels_) channel.input.reset();
  for (sys::Process& process : processes_) {
    for (int signal : {SIGTERM, SIGKILL}) {
      if (process.wait(Deadline::after(std::chrono::seconds(5)))) break;
      process.send(signal);
    }
    (void)process.wait(Deadline::never());
  }
}

void RankProcesses::tell(std::string_view line) {
  std::string words = std::string(line) + "\n";
  for (Channel& channel : channels_)
    if (::write(channel.input.get(), words.data(), words.size()) !=
        static_cast<ssize_t>(words.size()))
      throw SystemError("cannot tell a rank of " + name_ + " to go on", errno);
}

std::string RankProcesses::answer(int rank, Deadline deadline) {
  std::string& unread = channels_.at(rank).unread;
  std::size_t searched = 0;
  for (;;) {
    if (auto end = unread.find('\n', searched); end != std::string::npos) {
      std::string line = unread.substr(0, end);
      unread.erase(0, end + 1);
      return line;
    }
    searched = unread.size();
    if (!read_more(rank, deadline))
      throw Error(formatted("{} ended before the answer of rank {}: {}", name_, rank, ends()));
  }
}

std::string RankProcesses::ends() {
  std::vector<std::string> ends;
  for (std::size_t i = 0; i < processes_.size(); ++i)
    if (auto status = processes_[i].wait(Deadline::after(std::chrono::milliseconds(100))))
      ends.push_back(formatted("process {}: {}", i, sys::describe(*status)));
  return ends.empty() ? "a closed output" : listed(ends, ", ");
}

bool RankProcesses::read_more(int rank, Deadline deadline) {
  if (!wait_for_word(rank, deadline)) return false;
  Channel& channel = channels_[rank];
  std::array<char, 65536> buffer;
  ssize_t count = ::read(channel.output.get(), buffer.data(), buffer.size());
  if (count < 0 && errno == EINTR) return true;
  if (count <= 0) return false;
  channel.unread.append(buffer.data(), count);
  return true;
}

bool RankProcesses::wait_for_word(int rank, Deadline deadline) {
  std::vector<pollfd> watched{{channels_[rank].output.get(), POLLIN, 0}};
  for (const sys::Process& process : processes_) watched.push_back({process.pidfd(), POLLIN, 0});
  for (;;) {
    int count = ::poll(watched.data(), watched.size(), deadline.poll_milliseconds());
    if (count < 0 && errno != EINTR) throw SystemError("cannot wait for a rank", errno);
    if (count > 0) return watched.front().revents != 0;
    if (count == 0 && deadline.passed())
      throw Timeout(formatted("rank {} of {} has not answered in time", rank, name_));
  }
}

}  // namespace lockstep::apps
