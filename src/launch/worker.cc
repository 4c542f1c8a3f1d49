#include "launch/worker.h"

#include <lockstep/base/error.h>

#include <fcntl.h>

#include <cerrno>
#include <csignal>

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
  sys::Command command{.file = file, .arguments = {spec.program}, .environment = {}};
  command.arguments.insert(command.arguments.end(), spec.arguments.begin(), spec.arguments.end());
  for (const auto& [name, value] : rank_environment(spec.environment, place))
    command.environment.push_back(name + "=" + value);
  sys::FileDescriptor nothing;
  if (spec.input == StandardInput::none || rank_ != 0) {
    nothing = open_nothing();
    command.input = nothing.get();
  }
  command.output = output_.rank_output();
  command.error = output_.rank_error();
  for (int descriptor : {place.secret_descriptor, place.agent_descriptor})
    if (descriptor >= 0) command.keep.push_back(descriptor);
  // A session of its own: signals reach the rank with its children and nobody else, and the
  // terminal's own do not reach it.
  command.own_session = true;
  command.open_files = open_files;
  command.end_with_parent = true;
  error_file_ = place.error_file;
  process_ = sys::Process::spawn(command);
  running_ = true;
  started_ = Clock::now();
  output_.close_rank_ends();
}

std::optional<sys::ExitStatus> Worker::take_end() {
  if (!running_) return std::nullopt;
  const auto status = process_->try_wait();
  running_ = !status;
  return status;
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
