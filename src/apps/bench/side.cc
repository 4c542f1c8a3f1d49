#include "apps/bench/side.h"

#include <lockstep/base/error.h>
#include <lockstep/launch/environment.h>

#include "launch/meeting_point.h"

#include <lockstep/base/format.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

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

std::vector<std::string> environment_of(int rank, const SideCommand& command, int port) {
  launch::Environment base;
  for (auto& [name, value] : launch::current_environment())
    if (name != launch::variable::omp_threads && name != launch::variable::omp_wait_policy)
      base.emplace_back(name, value);
  base.emplace_back(launch::variable::omp_threads, std::to_string(command.threads));
  base.emplace_back(launch::variable::omp_wait_policy,
                    "passive");  // the idle side must leave the cores to the other
  launch::RankPlace place{
      .rank = rank, .ranks = command.ranks, .master_port = port, .run_id = "bench-" + command.name};
  std::vector<std::string> environment;
  for (const auto& [name, value] : launch::rank_environment(base, place))
    environment.push_back(name + "=" + value);
  return environment;
}

}  // namespace

Side::Side(SideCommand command) : command_(std::move(command)) {
  int port = launch::free_port();
  for (int rank = 0; rank < command_.ranks; ++rank) start(rank, port);
}

Side::~Side() {
  for (Rank& rank : ranks_) rank.input.reset();
  for (Rank& rank : ranks_) {
    if (rank.process.wait(Deadline::after(std::chrono::seconds(10)))) continue;
    rank.process.send(SIGKILL);
    (void)rank.process.wait(Deadline::never());
  }
}

void Side::start(int rank, int port) {
  Pipe in = make_pipe(), out = make_pipe();
  sys::Command command{.file = command_.program,
                       .arguments = {command_.program},
                       .environment = environment_of(rank, command_, port),
                       .input = in.read.get(),
                       .output = out.write.get(),
                       .end_with_parent = true};
  command.arguments.insert(command.arguments.end(), command_.arguments.begin(),
                           command_.arguments.end());
  ranks_.push_back({sys::Process::spawn(command), std::move(in.write), std::move(out.read), {}});
}

void Side::wait_until_ready() {
  for (int rank = 0; rank < command_.ranks; ++rank) {
    bool fused = nlohmann::json::parse(read_line(rank)).at("fused");
    if (rank == 0) is_fused_ = fused;
  }
}

std::vector<double> Side::run(int steps) {
  std::string line = std::to_string(steps) + "\n";
  for (Rank& rank : ranks_)
    if (::write(rank.input.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw SystemError("cannot tell a rank of " + command_.name + " to go on", errno);
  std::vector<double> slowest(steps, 0);
  for (int rank = 0; rank < command_.ranks; ++rank) {
    auto answer = nlohmann::json::parse(read_line(rank));
    std::vector<double> seconds = answer.at("seconds");
    for (int step = 0; step < steps; ++step)
      slowest[step] = std::max(slowest[step], seconds.at(step));
    if (rank == 0) losses_ = answer.at("losses").get<std::vector<double>>();
  }
  seconds_.insert(seconds_.end(), slowest.begin(), slowest.end());
  return slowest;
}

std::string Side::read_line(int number) {
  Rank& rank = ranks_[number];
  for (;;) {
    if (auto end = rank.unread.find('\n'); end != std::string::npos) {
      std::string line = rank.unread.substr(0, end);
      rank.unread.erase(0, end + 1);
      return line;
    }
    std::array<char, 4096> buffer;
    ssize_t count = ::read(rank.output.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw Error(formatted("rank {} of {} ended before its answer ({})", number, command_.name,
                            command_.program));
    rank.unread.append(buffer.data(), count);
  }
}

}  // namespace lockstep::apps
