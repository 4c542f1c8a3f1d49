// Processes in reserve: started before there is a rank for them.
#include "base/format.h"
#include "launch/run.h"

#include <lockstep/base/error.h>

#include <csignal>

#include <algorithm>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr int most_failures = 3;
constexpr int no_rank = -1;

}  // namespace

// A process that takes the place of another must be wanted then.
bool Agent::Run::keeps_reserve() const {
  return has_reserve_ && spec_.reserve > 0 && reserve_failures_ < most_failures &&
         plan_.restarts < spec_.max_restarts && gathering_for_ < 0 && !run_result_ &&
         asked_to_stop_ == 0 && state_machine_.state() == State::running;
}

void Agent::Run::fill_reserve() {
  if (!fill_reserve_ || Clock::now() < *fill_reserve_) return;
  fill_reserve_.reset();
  while (keeps_reserve() && std::ssize(reserve_) < spec_.reserve) {
    auto worker = std::make_unique<Worker>(no_rank, "", output_printer_, error_printer_, failures_,
                                           LogFile{});
    try {
      const sys::FileDescriptor secret = rendezvous_store_->secret_descriptor();
      RankSpec place = place_of_all();
      place.secret_descriptor = secret.get();
      worker->start_in_reserve(file_, spec_, place, open_files_->limit_before());
    } catch (const SystemError& error) {
      reserve_failures_ = most_failures;
      return say(formatted("no process is kept in reserve: {}", error.what()));
    }
    reserve_.push_back(std::move(worker));
  }
}

// Nothing where none is ready: one that is started for its rank is as far as one that is not.
std::unique_ptr<Worker> Agent::Run::taken_from_reserve() {
  const auto found =
      std::ranges::find_if(reserve_, [](const auto& worker) { return worker->is_ready(); });
  if (found == reserve_.end()) return nullptr;
  std::unique_ptr<Worker> worker = std::move(*found);
  reserve_.erase(found);
  return worker;
}

void Agent::Run::take_ended_reserve() {
  for (auto it = reserve_.begin(); it != reserve_.end();) {
    const auto status = (*it)->take_end();
    if (!status) {
      ++it;
      continue;
    }
    const std::unique_ptr<Worker> worker = std::move(*it);
    it = reserve_.erase(it);
    fill_reserve_ = Clock::now();
    if (worker->is_ready()) continue;  // it was killed
    worker->output().finish();
    if (++reserve_failures_ == most_failures)
      say(
          formatted("no process is kept in reserve any more: {} have ended before they were ready, "
                    "the last with {}",
                    reserve_failures_, sys::describe(*status)));
  }
}

void Agent::Run::end_reserve() {
  for (const auto& worker : reserve_)
    if (sys::Process* process = worker->process()) process->send_to_group(SIGKILL);
  for (const auto& worker : reserve_)
    if (sys::Process* process = worker->process())
      static_cast<void>(process->wait(Deadline::never()));
  reserve_.clear();
}

}  // namespace lockstep::launch
