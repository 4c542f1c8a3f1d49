#include "launch/worker.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace lockstep::launch {

namespace {

sys::FileDescriptor open_nothing() {
  sys::FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) throw SystemError("opening /dev/null", errno);
  return nothing;
}

}  // namespace

void Worker::start(const std::string& file, const WorkerSpec& spec, const RankSpec& place,
                   rlimit open_files) {
  Environment environment;
  if (rank_ < 0) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw SystemError("making a socket for a process in reserve", errno);
    reserve_.reset(ends[0]);
    in_reserve_.reset(ends[1]);
    environment = reserve_environment(spec.environment, place, in_reserve_.get());
  } else {
    error_file_ = place.error_file;
    environment = rank_environment(spec.environment, place);
  }
  sys::Command command{.file = file, .arguments = {spec.program}, .environment = {}};
  command.arguments.insert(command.arguments.end(), spec.arguments.begin(), spec.arguments.end());
  for (const auto& [name, value] : environment)
    command.environment.push_back(formatted("{}={}", name, value));
  sys::FileDescriptor nothing;
  // One in reserve gives it up where it does not become rank 0.
  if (spec.input == StandardInput::none || (rank_ != 0 && !is_in_reserve())) {
    nothing = open_nothing();
    command.input = nothing.get();
  }
  command.output = output_.rank_output();
  command.error = output_.rank_error();
  for (int descriptor : {place.secret_descriptor, place.agent_descriptor, in_reserve_.get()})
    if (descriptor >= 0) command.keep.push_back(descriptor);
  // A session of its own: signals reach the rank with its children and nobody else, and the
  // terminal's own do not reach it.
  command.own_session = true;
  command.open_files = open_files;
  command.end_with_parent = true;
  process_ = sys::Process::spawn(command);
  running_ = true;
  end_.reset();
  started_ = Clock::now();
  output_.close_rank_ends();
  in_reserve_.reset();
}

bool Worker::is_ready() {
  char byte = 0;
  if (reserve_ && !is_ready_) is_ready_ = ::recv(reserve_.get(), &byte, 1, MSG_DONTWAIT) == 1;
  return is_ready_;
}

void Worker::take_over(int rank, std::string name, const LogFile& log) {
  name_ = std::move(name);
  set_rank(rank);
  output_.begin_log(log);
}

// It fits into an empty socket. One that has ended meanwhile is a worker that fails at once.
void Worker::give_place(const RankSpec& place) {
  std::string text;
  for (const auto& [name, value] : place_environment(place)) {
    text += formatted("{}={}", name, value);
    text += '\0';
  }
  text += '\0';
  error_file_ = place.error_file;
  started_ = Clock::now();
  [[maybe_unused]] const ssize_t sent =
      ::send(reserve_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  reserve_.reset();
}

std::optional<sys::ExitStatus> Worker::take_end() {
  if (!running_) return std::nullopt;
  end_ = process_->try_wait();
  running_ = !end_;
  return end_;
}

void Worker::kill(const std::string& why) {
  if (!running_ || !killed_why_.empty()) return;
  killed_why_ = why;
  process_->send_to_group(SIGKILL);
}

RankEnd Worker::describe_end(sys::ExitStatus status, Clock::time_point now) const {
  const bool by_agent = !killed_why_.empty() && status.signal == SIGKILL;
  return {rank_, process_->pid(), status.shell_code(),
          by_agent ? killed_why_ : sys::describe(status), now - started_};
}

}  // namespace lockstep::launch
