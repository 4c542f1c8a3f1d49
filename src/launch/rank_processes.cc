#include "launch/rank_processes.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "launch/run_report.h"
#include "rank_env/visible_gpus.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <set>
#include <sstream>

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
      throw SystemError("making a socket for a hot spare", errno);
    spare_socket_.reset(ends[0]);
    spare_socket_of_process_.reset(ends[1]);
    environment = hot_spare_environment(spec.environment, place, spare_socket_of_process_.get());
  } else {
    error_file_ = place.error_file;
    environment = rank_environment(spec.environment, place);
  }
  sys::Command command{.file = file, .arguments = {spec.program}, .environment = {}};
  command.arguments.insert(command.arguments.end(), spec.arguments.begin(), spec.arguments.end());
  for (const auto& [name, value] : environment)
    command.environment.push_back(formatted("{}={}", name, value));
  sys::FileDescriptor nothing;
  // A hot spare keeps standard input until it gets a rank, and closes it unless that is rank 0.
  if (spec.input == StandardInput::none || (rank_ != 0 && !is_hot_spare())) {
    nothing = open_nothing();
    command.input = nothing.get();
  }
  command.output = output_.rank_output();
  command.error = output_.rank_error();
  for (int descriptor :
       {place.secret_descriptor, place.agent_descriptor, spare_socket_of_process_.get()})
    if (descriptor >= 0) command.keep.push_back(descriptor);
  // The rank gets its own session: signals reach only the rank and its children, and the terminal's
  // signals do not reach it.
  command.own_session = true;
  command.open_files = open_files;
  command.end_with_parent = true;
  process_ = sys::Process::spawn(command);
  running_ = true;
  end_.reset();
  life_.reset();
  started_ = Clock::now();
  output_.close_rank_ends();
  spare_socket_of_process_.reset();
}

bool Worker::is_ready() {
  char byte = 0;
  if (spare_socket_ && !is_ready_)
    is_ready_ = ::recv(spare_socket_.get(), &byte, 1, MSG_DONTWAIT) == 1;
  return is_ready_;
}

void Worker::take_over(int rank, std::string name, const LogFile& log) {
  name_ = std::move(name);
  set_rank(rank);
  output_.begin_log(log);
}

// The message fits into the socket's empty buffer. If the hot spare has ended in the meantime, it
// counts as a worker that failed at once.
void Worker::assign_rank(const RankSpec& place) {
  std::string text;
  for (const auto& [name, value] : place_environment(place)) {
    text += formatted("{}={}", name, value);
    text += '\0';
  }
  text += '\0';
  error_file_ = place.error_file;
  started_ = Clock::now();
  [[maybe_unused]] const ssize_t sent =
      ::send(spare_socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  spare_socket_.reset();
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

void Worker::note_look(bool is_stopped, Duration hung_after, Duration longest_pause) {
  const auto now = Clock::now();
  if (!life_) life_.emplace(hung_after, longest_pause);
  life_->note(is_stopped ? "stopped" : std::to_string(++looks_), now);
  if (life_->lost(now))
    kill(formatted("killed by the agent: it, or a process that it started, was stopped for {}",
                   format_duration(hung_after)));
}

RankEnd Worker::describe_end(sys::ExitStatus status, Clock::time_point now) const {
  const bool by_agent = !killed_why_.empty() && status.signal == SIGKILL;
  return {rank_, process_->pid(), status.shell_code(),
          by_agent ? killed_why_ : sys::describe(status), now - started_};
}

namespace {

enum class Finding { absent, folder, not_executable, executable };

Finding look_at(const std::string& file) {
  struct stat found = {};
  if (::stat(file.c_str(), &found) != 0) return Finding::absent;
  if (S_ISDIR(found.st_mode)) return Finding::folder;
  return ::access(file.c_str(), X_OK) == 0 ? Finding::executable : Finding::not_executable;
}

std::vector<std::string> candidates(const std::string& name, std::string_view path) {
  if (name.find('/') != std::string::npos) return {name};
  std::vector<std::string> files;
  std::istringstream folders{std::string(path)};
  for (std::string folder; std::getline(folders, folder, ':');)
    files.push_back((folder.empty() ? "." : folder) + "/" + name);
  files.push_back("./" + name);
  return files;
}

}  // namespace

FoundProgram find_program(const std::string& name, std::string_view path) {
  FoundProgram nearest_miss{"", "program '" + name + "' was not found", 127};
  if (name.find('/') == std::string::npos)
    nearest_miss.problem += " in PATH or in the current folder";
  for (const std::string& file : candidates(name, path)) {
    const Finding finding = look_at(file);
    if (finding == Finding::executable) return {file, "", 0};
    if (nearest_miss.exit_code == 126 || finding == Finding::absent) continue;
    if (finding == Finding::folder) {
      if (name.find('/') != std::string::npos)
        nearest_miss = {"", "program '" + file + "' is a folder", 126};
    } else {
      nearest_miss = {
          "", "program '" + file + "' is not executable: chmod +x, or start it by its interpreter",
          126};
    }
  }
  return nearest_miss;
}

namespace {

constexpr int most_failures_of_hot_spares = 3;
constexpr int no_rank = -1;

constexpr std::chrono::seconds leftover_grace{1}, orphan_interval{1}, shortest_look{1};
constexpr int looks_until_hung = 5;  // at least, unless hung_after is too short

void check_limits(const WorkerSpec& spec, rlim_t most) {
  constexpr rlim_t own = 24, of_a_rank = 4;  // while the ranks are being started
  const auto ranks = static_cast<rlim_t>(spec.ranks) +
                     static_cast<rlim_t>(may_have_more_rounds(spec) ? spec.hot_spares : 0);
  const rlim_t needed = own + ranks * (of_a_rank + (spec.log_folder.empty() ? 0 : 1));
  check_input(
      most >= needed,
      "starting {} ranks: expected a limit of at least {} open files, found {}: raise the hard "
      "limit (ulimit -n), or start fewer ranks",
      spec.ranks, needed, most);
}

std::set<pid_t> numbers_of(const std::vector<sys::Process*>& processes) {
  std::set<pid_t> numbers;
  for (const sys::Process* process : processes) numbers.insert(process->pid());
  return numbers;
}

}  // namespace

std::string gpus_of(const WorkerSpec& spec, int local_rank) {
  if (spec.gpus_per_rank == 0) return {};
  const auto visible = spec.environment.find(std::string_view(variable::visible_gpus));
  return rank_env::gpus_of_rank(
      local_rank, spec.ranks, spec.gpus_per_rank,
      visible == spec.environment.end() ? std::nullopt : std::optional(visible->second));
}

void HotSpares::allow() {
  is_allowed_ = true;
  fill_at_ = Clock::now();
}

void HotSpares::fill(bool is_wanted, const std::function<void(Worker&)>& start) {
  if (!fill_at_ || Clock::now() < *fill_at_) return;
  fill_at_.reset();
  while (is_allowed_ && is_wanted && failures_ < most_failures_of_hot_spares &&
         std::ssize(workers_) < most_) {
    auto worker = std::make_unique<Worker>(no_rank, "", relay_.output(), relay_.error(),
                                           relay_.failures(), LogFile{});
    try {
      start(*worker);
    } catch (const SystemError& error) {
      failures_ = most_failures_of_hot_spares;
      return relay_.log_line(formatted("no hot spare could be started: {}", error.what()));
    }
    workers_.push_back(std::move(worker));
  }
}

std::unique_ptr<Worker> HotSpares::take() {
  const auto found =
      std::ranges::find_if(workers_, [](const auto& worker) { return worker->is_ready(); });
  if (found == workers_.end()) return nullptr;
  std::unique_ptr<Worker> worker = std::move(*found);
  workers_.erase(found);
  return worker;
}

void HotSpares::take_ended() {
  for (auto it = workers_.begin(); it != workers_.end();) {
    const auto status = (*it)->take_end();
    if (!status) {
      ++it;
      continue;
    }
    const std::unique_ptr<Worker> worker = std::move(*it);
    it = workers_.erase(it);
    fill_at_ = Clock::now();
    if (worker->is_ready()) continue;  // it was killed
    worker->output().finish();
    if (++failures_ == most_failures_of_hot_spares)
      relay_.log_line(formatted(
          "no more hot spares are started: {} ended before they were ready, the last with {}",
          failures_, sys::describe(*status)));
  }
}

void HotSpares::end() {
  for (const auto& worker : workers_)
    if (sys::Process* process = worker->process()) process->send_to_group(SIGKILL);
  for (const auto& worker : workers_)
    if (sys::Process* process = worker->process())
      static_cast<void>(process->wait(Deadline::never()));
  workers_.clear();
}

RankProcesses::RankProcesses(RunState& run, OutputRelay& relay, const RoundStore& store)
    : run_(run),
      relay_(relay),
      store_(store),
      // A spare reads its GPUs before it has a rank.
      hot_spares_(run.spec.gpus_per_rank > 0 ? 0 : run.spec.hot_spares, relay) {
  subreaper_.emplace();
}

RankProcesses::~RankProcesses() {
  subreaper_->end_all(Duration::zero());
  subreaper_.reset();
  orphan_reaper_.reset();
}

void RankProcesses::open(std::string file, const ErrorFolder& errors) {
  const WorkerSpec& spec = run_.spec;
  check_limits(spec, open_files_.most());
  file_ = std::move(file);
  errors_ = &errors;
  this_process_ = sys::with_high_number(sys::open_pidfd(::getpid()));
  orphan_reaper_.emplace(this_process_, marks_of_ranks(spec_of_all()), spec.error,
                         errors_->is_temporary() ? errors_->path() : "");
  subreaper_->leave_alone(orphan_reaper_->pid());
}

RankSpec RankProcesses::spec_of_all() const {
  const RoundPlan& plan = run_.plan;
  RankSpec place{.ranks = plan.ranks(),
                 .local_ranks = run_.spec.ranks,
                 .node = plan.group_rank(run_.node),
                 .nodes = static_cast<int>(plan.nodes.size()),
                 .agent = run_.node,
                 .restart = plan.restarts,
                 .max_restarts = run_.spec.max_restarts,
                 .master_address = plan.master_address,
                 .master_port = plan.master_port,
                 .run_id = store_.run_id,
                 .store = store_.address,
                 .agent_descriptor = this_process_.get(),
                 .cores = sys::usable_cores(),
                 .shares_gpus = run_.spec.shares_gpus};
  if (may_have_more_rounds(run_.spec)) place.round = plan.round;
  return place;
}

std::unique_ptr<Worker> RankProcesses::fresh_worker(int rank, const std::string& name) {
  LogFile log;
  if (const std::string& folder = run_.spec.log_folder; !folder.empty())
    log = {.name = (std::filesystem::path(folder) / formatted("rank-{}.log", rank)).string(),
           .append = run_.plan.round > 0};
  if (std::unique_ptr<Worker> ready = hot_spares_.take()) {
    ready->take_over(rank, name, log);
    return ready;
  }
  return std::make_unique<Worker>(rank, name, relay_.output(), relay_.error(), relay_.failures(),
                                  log);
}

std::optional<RankProcesses::Failure> RankProcesses::start(const std::vector<Worker*>& workers) {
  const RankSpec place = spec_of_all();
  for (std::size_t i = 0; i < workers.size(); ++i) {
    try {
      start(*workers[i], place);
    } catch (const SystemError& error) {
      const char* hint =
          error.error_number() == ENOENT ? " (the interpreter that its first line names)" : "";
      return Failure{.started = static_cast<int>(i),
                     .problem = formatted("rank {}: {}{}", workers[i]->rank(), error.what(), hint)};
    }
  }
  return std::nullopt;
}

void RankProcesses::start(Worker& worker, RankSpec place) {
  const sys::FileDescriptor secret = store_.secret_descriptor();
  place.rank = worker.rank();
  place.local_rank = worker.rank() - run_.first_rank();
  place.gpus = gpus_of(run_.spec, std::max(0, place.local_rank));
  place.secret_descriptor = secret.get();
  if (may_have_more_rounds(run_.spec)) place.worker = worker.name();
  place.error_file = errors_->file(std::max(0, place.round), place.rank);
  if (worker.is_hot_spare()) return worker.assign_rank(place);
  worker.start(file_, run_.spec, place, open_files_.limit_before());
}

void RankProcesses::watch(Poller& poller) {
  for (const auto& worker : run_.workers) relay_.watch(poller, worker->output());
  // Only wakes up the poller; take_ended() then checks all processes and puts them in order.
  for (sys::Process* process : living()) poller.watch(process->pidfd(), POLLIN, [] {});
}

// Checks the ranks of this node and their descendants, because a program may run below a shell.
void RankProcesses::look_for_hangs() {
  const Duration hung_after = run_.spec.hung_after;
  const Duration between_looks = std::max<Duration>(shortest_look, hung_after / looks_until_hung);
  if (hung_after == Duration::zero() || Clock::now() - hangs_seen_ < between_looks) return;
  hangs_seen_ = Clock::now();
  std::set<pid_t> ranks;
  for (const auto& worker : run_.workers)
    if (sys::Process* process = worker->process()) ranks.insert(process->pid());
  const std::set<pid_t> stopped = Subreaper::stopped(ranks);
  for (const auto& worker : run_.workers)
    if (worker->process() != nullptr)
      worker->note_look(stopped.contains(worker->pid()), hung_after, 3 * between_looks);
}

std::vector<std::pair<Worker*, sys::ExitStatus>> RankProcesses::take_ended() {
  hot_spares_.take_ended();
  std::vector<std::pair<Worker*, sys::ExitStatus>> ended;
  for (const auto& worker : run_.workers)
    if (const auto status = worker->take_end()) ended.emplace_back(worker.get(), *status);
  std::stable_partition(ended.begin(), ended.end(),
                        [](const auto& end) { return end.second.signal != 0; });
  return ended;
}

void RankProcesses::tell_end(const RankEnd& end) {
  const bool is_last = std::ranges::none_of(
      run_.workers, [](const auto& worker) { return worker->process() != nullptr; });
  const bool is_alone = run_.plan.nodes.size() < 2 && !may_have_more_rounds(run_.spec);
  if (is_last && is_alone) return;
  if (!rank_ends_) rank_ends_.emplace(store_.address, store_.secret);
  rank_ends_->tell(formatted("{}/{}", store_.run_id, run_.plan.round), end.rank, end.how);
}

void RankProcesses::send(int signal, bool without_survivors) {
  for (const auto& worker : run_.workers) {
    if (without_survivors && worker->survival() != Worker::Survival::none) continue;
    if (sys::Process* process = worker->process()) process->send_to_group(signal);
  }
}

void RankProcesses::suspend() {
  const auto send_to_each = [this](int signal) {
    for (sys::Process* process : living()) process->send_to_group(signal);
  };
  send_to_each(SIGSTOP);
  ::kill(::getpid(), SIGSTOP);
  send_to_each(SIGCONT);
}

void RankProcesses::tend() {
  const bool is_wanted = run_.plan.restarts < run_.spec.max_restarts && run_.rendezvous_for < 0 &&
                         !run_.run_result && run_.asked_to_stop == 0 &&
                         run_.machine.state() == State::running;
  hot_spares_.fill(is_wanted, [this](Worker& worker) {
    const sys::FileDescriptor secret = store_.secret_descriptor();
    RankSpec place = spec_of_all();
    place.secret_descriptor = secret.get();
    worker.start(file_, run_.spec, place, open_files_.limit_before());
  });
  look_for_hangs();
  if (Clock::now() - orphans_seen_ < orphan_interval) return;
  orphans_seen_ = Clock::now();
  subreaper_->collect(numbers_of(living()));
}

// Returns the processes of the ranks and of the hot spares.
std::vector<sys::Process*> RankProcesses::living() const {
  std::vector<sys::Process*> processes;
  for (const Workers& list : {std::cref(run_.workers), std::cref(hot_spares_.workers())})
    for (const auto& worker : list)
      if (sys::Process* process = worker->process()) processes.push_back(process);
  return processes;
}

void RankProcesses::end_leftovers() {
  if (!run_.workers.empty()) subreaper_->end_all(Duration::zero(), numbers_of(living()));
}

void RankProcesses::end_all() {
  hot_spares_.end();
  subreaper_->end_all(leftover_grace);
  for (const auto& worker : run_.workers) worker->output().finish();
}

}  // namespace lockstep::launch
