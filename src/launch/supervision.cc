#include "base/format.h"
#include "base/text.h"
#include "base/visible.h"
#include "launch/run.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <map>

namespace lockstep::launch {

namespace {

constexpr std::chrono::seconds orphan_interval{1};

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return formatted("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
}

}  // namespace

void Agent::Run::supervise() {
  Poller poller;
  watch_signals(poller);
  watch_sinks(poller);
  watch_for_hangs(poller);
  for (const auto& worker : workers_) watch_streams(poller, *worker);
  // Only to wake up: which of several ended first is decided when all of them have been looked at.
  for (const auto& worker : workers_)
    if (sys::Process* process = worker->process()) poller.watch(process->pidfd(), POLLIN, [] {});
  for (const auto& worker : reserve_)
    if (sys::Process* process = worker->process()) poller.watch(process->pidfd(), POLLIN, [] {});
  watch_rounds(poller);  // behind what workers have said: a round that begins has others
  poller.wait(next_wake(Clock::now()));

  take_ended();
  take_ended_reserve();
  kill_late_keepers(Clock::now());
  state_machine_.time_is(Clock::now());
  if (const auto signal = state_machine_.take_signal()) send_to_all(*signal);
  if (state_machine_.state() == State::done) tell_done();
  offer_if_ready();
  fill_reserve();
  say_losses();
  collect_orphans();
}

Deadline Agent::Run::next_wake(Clock::time_point now) {
  Deadline wake = Deadline::after(orphan_interval);
  for (const auto& next : {state_machine_.next(), keepers_limit_, offer_after_, fill_reserve_})
    if (next) wake = wake.or_sooner(Deadline::after(*next - now));
  for (const auto& worker : workers_) wake = wake.or_sooner(worker->output().show_unfinished(now));
  return wake;
}

void Agent::Run::watch_streams(Poller& poller, Worker& worker) {
  if (output_.full() || error_.full()) return;  // the rank waits, as it would for a slow terminal
  for (int stream = 0; stream < 2; ++stream)
    poller.watch(worker.output().descriptor(stream), POLLIN,
                 [&worker, stream] { worker.output().read(stream, Clock::now()); });
}

void Agent::Run::watch_sinks(Poller& poller) {
  for (Sink* sink : {&output_, &error_})
    if (sink->pending() > 0) poller.watch(sink->descriptor(), POLLOUT, [sink] { sink->flush(); });
}

void Agent::Run::watch_signals(Poller& poller) {
  poller.watch(delivered_.get(), POLLIN, [&] {
    unsigned char signal;
    while (::read(delivered_.get(), &signal, 1) == 1) signalled(signal);
  });
  if (!signals_) return;
  poller.watch(signals_->descriptor(), POLLIN, [&] {
    for (int signal : signals_->take()) signalled(signal);
  });
}

void Agent::Run::watch_for_hangs(Poller& poller) {
  if (!hang_watch_) return;
  poller.watch(hang_watch_->descriptor(), POLLIN, [&] {
    const auto hung = hang_watch_->take_hung();
    for (const auto& worker : workers_)
      if (hung.contains(name_of(*worker)))
        worker->kill(formatted("killed by the agent: it gave no sign of life for {}",
                               format_duration(spec_.hung_after)));
  });
}

void Agent::Run::watch_living() {
  if (!hang_watch_) return;
  std::map<std::string, pid_t> living;
  for (const auto& worker : workers_)
    if (sys::Process* process = worker->process()) living.emplace(name_of(*worker), process->pid());
  hang_watch_->watch(std::move(living));
}

// As detection/beat.h names it.
std::string Agent::Run::name_of(const Worker& worker) const {
  return has_rounds(spec_) ? worker.name() : std::to_string(worker.rank());
}

void Agent::Run::take_ended() {
  std::vector<std::pair<Worker*, sys::ExitStatus>> ended;
  for (const auto& worker : workers_)
    if (const auto status = worker->take_end()) ended.emplace_back(worker.get(), *status);
  // Seen together: a rank that was killed is the likelier cause of another's error than the other
  // way round.
  std::stable_partition(ended.begin(), ended.end(),
                        [](const auto& end) { return end.second.signal != 0; });
  for (const auto& [worker, status] : ended) note_end(*worker, status);
  if (!ended.empty()) watch_living();
}

void Agent::Run::note_end(Worker& worker, sys::ExitStatus status) {
  const auto now = Clock::now();
  worker.output().finish();
  if (worker.standing() == Worker::Standing::waiting) return;  // begin_round() sees it
  result_.ends.push_back(worker.describe_end(status, now));
  state_machine_.ended(worker.rank(), status, now);
  if (state_machine_.cause() == worker.rank()) note_failure(result_.ends.back());
  if (status.success()) tell_others_of_end(result_.ends.back());
}

// They may wait for it in init(); of any other end they learn by their own.
void Agent::Run::tell_others_of_end(const RankEnd& end) {
  const bool is_last = std::ranges::none_of(
      workers_, [](const auto& worker) { return worker->process() != nullptr; });
  if (!rendezvous_store_ || (is_last && !rounds_)) return;
  if (!rank_ends_)
    rank_ends_.emplace(rendezvous_store_->store_address(), rendezvous_store_->secret());
  const int attempt = rounds_ ? plan_.round : 0;
  rank_ends_->tell(formatted("{}/{}", rendezvous_store_->run_id(), attempt), end.rank, end.how);
}

void Agent::Run::note_failure(const RankEnd& end) {
  failed_at_ = time_of_day();
  failure_ = formatted("rank {} has failed ({})", end.rank, end.how);
  tell_failure(end);
}

void Agent::Run::signalled(int signal) {
  if (signal == SIGTSTP) return suspend();
  if (rounds_ && !run_result_ && !are_signalled()) return ask_rounds_to_stop(signal);
  if (state_machine_.state() == State::done) {
    interrupted_ = true;
    return;
  }
  state_machine_.signalled(signal, Clock::now());
  tell_stop();
  if (const auto due = state_machine_.take_signal()) send_to_all(*due);
}

// Returns true if a signal is for ranks that run. Those of a failed round end in any case.
bool Agent::Run::are_signalled() const {
  const State state = state_machine_.state();
  return state == State::running || state == State::stopping ||
         (state == State::failed && !has_rounds(spec_));
}

void Agent::Run::send_to_all(int signal) {
  const bool ends_round = gathering_for_ >= 0 && (signal == SIGTERM || signal == SIGKILL);
  if (state_machine_.state() == State::failed && signal == SIGTERM && !ends_round)
    say(failure_ + "; ending the others");
  for (const auto& worker : workers_) {
    if (ends_round && worker->standing() != Worker::Standing::plain) continue;
    if (sys::Process* process = worker->process()) process->send_to_group(signal);
  }
}

void Agent::Run::suspend() {
  const auto send = [this](int signal) {
    send_to_all(signal);
    for (const auto& worker : reserve_)
      if (sys::Process* process = worker->process()) process->send_to_group(signal);
  };
  send(SIGSTOP);
  ::kill(::getpid(), SIGSTOP);
  send(SIGCONT);
}

void Agent::Run::say_losses() {
  if (output_.lost() != 0 && !output_loss_said_) {
    output_loss_said_ = true;
    const char* left = spec_.log_folder.empty() ? "dropped" : "only in their logs";
    say(formatted("standard output is gone ({}); {}", std::strerror(output_.lost()),
                  spec_.stop_without_reader
                      ? "stopping the ranks"
                      : formatted("the ranks go on, what they print there is {}", left)));
    if (spec_.stop_without_reader) signalled(SIGPIPE);
  }
  for (const auto& worker : workers_)
    if (const int error = worker->output().take_log_error())
      say(formatted("cannot write {}: {}; the rank goes on without it", worker->output().log_file(),
                    std::strerror(error)));
}

void Agent::Run::collect_orphans() {
  if (Clock::now() - orphans_seen_ < orphan_interval) return;
  orphans_seen_ = Clock::now();
  std::set<pid_t> own;
  for (const auto* list : {&workers_, &reserve_})
    for (const auto& worker : *list)
      if (sys::Process* process = worker->process()) own.insert(process->pid());
  subreaper_->collect(own);
}

// Much of what it says came from ranks and from other nodes.
void Agent::Run::say(const std::string& line) { error_printer_.say(speaker + visible_line(line)); }

}  // namespace lockstep::launch
