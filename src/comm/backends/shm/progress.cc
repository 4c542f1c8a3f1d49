#include "comm/backends/shm/progress.h"

#include "base/log.h"
#include "comm/backends/shm/watcher.h"
#include "sys/topology.h"

#include <exception>

namespace lockstep::shm {
namespace {

constexpr auto notice_after = std::chrono::seconds(30);
// A peer may be stopped (SIGSTOP) after it has completed the last segment but before it rings the
// doorbell, so sleepers check for work at least this often.
constexpr auto longest_sleep = std::chrono::seconds(1);

// The times at which a long wait logs a sentence and at which it ends. A wait without a deadline
// logs nothing.
struct Limits {
  explicit Limits(Duration timeout)
      : begin(Clock::now()),
        deadline(Deadline::after(timeout)),
        notice(deadline.is_never() ? deadline : Deadline::after(notice_after)) {}
  Clock::time_point begin;
  Deadline deadline;
  Deadline notice;
};

}  // namespace

ProgressEngine::ProgressEngine(const PeerMappings& peers)
    : peers_(peers),
      control_(peers.own_control()),
      has_core_(peers.size() <= sys::usable_cores()),
      marks_(peers) {}

void ProgressEngine::start_helping() {
  if (peers_.size() < sys::usable_cores()) helper_ = sys::Thread("shm helper", [this] { help(); });
}

void ProgressEngine::stop_helping() {
  if (!helper_.joinable()) return;
  stopping_ = true;
  control_.helper.rings.fetch_add(1, std::memory_order_seq_cst);
  sys::futex_wake_all(control_.helper.rings);
  helper_.join();
}

void ProgressEngine::remove(std::span<Channel* const> channels) {
  for (Channel* channel : channels) std::erase(channels_, channel);
  forget(channels);
}

void ProgressEngine::forget(std::span<Channel* const> channels) {
  for (Channel* channel : channels) std::erase(busy_, channel);
  note_busy();
}

void ProgressEngine::stop(std::span<Channel* const> channels) {
  for (Channel* channel : channels) channel->stop();
  forget(channels);
}

bool ProgressEngine::post(Channel& channel, const CallInfo& info) {
  Channel::Task task;
  std::optional<std::size_t> place;
  WakeScope wake = WakeScope::nobody;
  {
    std::lock_guard lock(mutex_);
    if (channel.is_stopped()) return false;
    if (std::ranges::find(busy_, &channel) == busy_.end()) {
      busy_.push_back(&channel);
      note_busy();
    }
    wake = channel.post_next(info);
    bool is_idle = busy_.size() == 1 && channel.waits_for_peers();
    if (!is_idle) place = claim(ProgressScope::own_part, task);
  }
  if (wake != WakeScope::nobody) peers_.ring(channel.world_ranks(), wake == WakeScope::everybody);
  if (place) execute(task, *place);
  while (place && progress(ProgressScope::own_part)) continue;
  return true;
}

std::optional<std::size_t> ProgressEngine::claim(ProgressScope scope, Channel::Task& task) {
  auto place = marks_.free_place();
  if (!claim_in_busy_channels(place ? scope : ProgressScope::inline_only, task))
    return std::nullopt;
  marks_.set(*place, execution_word(task.channel->key(), task.sequence));
  return place;
}

bool ProgressEngine::claim_in_busy_channels(ProgressScope scope, Channel::Task& task) {
  for (std::size_t i = 0; i < busy_.size();) {
    Channel& channel = *busy_[i];
    if (channel.claim_next(scope, task)) return true;
    if (channel.completed() < channel.posted()) {
      ++i;
    } else {
      busy_.erase(busy_.begin() + static_cast<std::ptrdiff_t>(i));
      note_busy();
    }
  }
  return false;
}

bool ProgressEngine::has_nothing_but(const Channel& channel) const {
  return busy_channels_.load(std::memory_order_relaxed) == 1 && !channel.is_settled() &&
         channel.misses_a_post();
}

bool ProgressEngine::progress(ProgressScope scope) {
  Channel::Task task;
  std::optional<std::size_t> place;
  {
    std::lock_guard lock(mutex_);
    place = claim(scope, task);
  }
  if (place) execute(task, *place);
  if (due_.load(std::memory_order_relaxed) != 0) due_action_();
  return place.has_value();
}

bool ProgressEngine::try_progress(ProgressScope scope) noexcept {
  try {
    return progress(scope);
  } catch (const std::exception& error) {
    log::warning("shared memory: an operation waits for the next call of this rank: {}",
                 error.what());
    return false;
  }
}

void ProgressEngine::execute(const Channel::Task& task, std::size_t place) {
  Channel& channel = *task.channel;
  bool complete = channel.execute(task);
  marks_.clear(place);
  if (complete) peers_.ring(channel.world_ranks(), !task.is_whole);
  channel.end_task();
}

bool ProgressEngine::wait(Channel& channel, const Awaited& awaited, Duration timeout) {
  const SharedGroupState& group = channel.group();
  SpinPolicy spin(cores_, has_core_);
  std::optional<Limits> limits;  // most waits end before reading a clock
  auto look = [&] {
    channel.check_departures(awaited);
    return progress(ProgressScope::anything) || channel.is_over(awaited) || group.has_failed();
  };
  while (!channel.is_over(awaited)) {
    if (!has_nothing_but(channel) && progress(ProgressScope::anything)) {
      spin.restart();
      continue;
    }
    if (channel.is_over(awaited)) return true;
    if (group.has_failed()) return false;
    if (spin.has_more()) continue;
    if (!limits) limits.emplace(timeout);
    const auto late = urge(channel, awaited);
    if (limits->deadline.passed()) {
      group.fail(FailureKind::timeout, channel.overdue(awaited, late, timeout));
      continue;
    }
    if (limits->notice.passed()) {
      log::warning("{}", channel.overdue(awaited, late, Clock::now() - limits->begin));
      limits->notice = Deadline::never();
    }
    Duration most =
        std::min<Duration>({limits->deadline.left(), limits->notice.left(), longest_sleep});
    sleep_until_rung(control_.waiting, most, look);
  }
  return true;
}

std::vector<int> ProgressEngine::urge(const Channel& channel, const Awaited& awaited) {
  std::vector<int> late;
  {
    std::lock_guard lock(mutex_);
    late = channel.late_members(awaited);
  }
  for (int member : late) {
    int rank = channel.group().world_rank(member);
    if (rank != peers_.rank()) nudge(peers_.peer(rank));
  }
  return late;
}

void ProgressEngine::on_urge(int rank) {
  (void)try_progress(ProgressScope::inline_only);
  // The thread that executed the operations published that without a fence (Channel::complete,
  // peers.h).
  std::atomic_thread_fence(std::memory_order_seq_cst);
  peers_.ring(std::span(&rank, 1), false);
}

bool ProgressEngine::is_used_besides(const SharedGroupState& group, Buffer buffer) {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(channels_, [&](const Channel* channel) {
    return &channel->group() != &group && channel->uses(buffer);
  });
}

void ProgressEngine::help() {
  while (!stopping_) {
    if (try_progress(ProgressScope::anything)) continue;
    sleep_until_rung(control_.helper, longest_sleep,
                     [this] { return stopping_ || try_progress(ProgressScope::anything); });
  }
}

}  // namespace lockstep::shm
