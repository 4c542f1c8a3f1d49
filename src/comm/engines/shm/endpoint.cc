#include "comm/engines/shm/endpoint.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/call/all_ranks.h"
#include "comm/engines/shm/private_memory.h"
#include "comm/engines/shm/waiting.h"
#include "comm/kernels/combine.h"
#include "sys/topology.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace lockstep::shm {
namespace {

constexpr auto notice_after = std::chrono::seconds(30);
// A peer that is stopped between its last segment and its ring wakes nobody, although all is
// complete.
constexpr auto longest_sleep = std::chrono::seconds(1);

std::size_t checked(std::size_t arena, int rank, int size) {
  check(size <= kernels::max_ranks, "shared memory: expected at most {} ranks, found {}",
        kernels::max_ranks, size);
  check(rank >= 0 && rank < size, "shared memory: expected a rank below {}, found {}", size, rank);
  return arena;
}

std::string prefix_of_round(Store& store, int rank) {
  return formatted("shm/{}/", store.add(formatted("shm/round/{}", rank), 1));
}

// When a wait that lasts becomes worth a sentence, and when it ends. One that may last for ever is
// never worth a sentence.
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

Endpoint::Endpoint(std::shared_ptr<Store> store, int rank, int size, EndpointOptions options)
    : store_(std::move(store)),
      options_(options),
      arena_(sys::make_shared_of_process<Arena>(checked(options.arena_bytes, rank, size))),
      prefix_(prefix_of_round(*store_, rank)),
      world_block_(rank == 0 ? make_block(size) : nullptr),
      handed_over_(hand_over(*store_, prefix_, rank, size, arena_,
                             world_block_ ? world_block_ - arena_->data() : 0,
                             Deadline::after(options.join_timeout))),
      marks_(handed_over_.peers),
      has_core_(size <= sys::usable_cores()),
      lost_(size) {
  world_ = &add_group("world", all_ranks(size), peers().base(0) + handed_over_.world_block);
  arena_->control().reaches_peers.store(reaches_peers() ? Control::yes : Control::no,
                                        std::memory_order_release);
  watcher_ = std::make_unique<Watcher>(
      peers(), [this](int peer) { on_peer_end(peer); }, [this](int peer) { on_nudge(peer); });
  if (size < sys::usable_cores()) helper_ = sys::Thread("shm helper", [this] { help(); });
}

Endpoint::~Endpoint() {
  if (process_.is_copy_of_parent()) {
    sys::leave_undestroyed(std::move(groups_), std::move(leaving_), std::move(given_up_),
                           std::move(used_keys_), std::move(own_blocks_), std::move(busy_),
                           std::move(watcher_));
    return;
  }
  // First, so that nobody waits for this rank while it waits for them.
  arena_->control().left.store(Control::leaving, std::memory_order_seq_cst);
  ring(all_ranks(peers().size()));
  auto deadline = Deadline::after(grace_.length(Duration::max()));
  for (auto& group : all_groups()) group->let_peers_finish(deadline, grace_.is_by_exception());
  watcher_.reset();
  stopping_ = true;
  arena_->control().helper.rings.fetch_add(1, std::memory_order_seq_cst);
  sys::futex_wake_all(arena_->control().helper.rings);
  if (helper_.joinable()) helper_.join();
  arena_->control().left.store(Control::gone, std::memory_order_seq_cst);
  ring(all_ranks(peers().size()));
}

bool Endpoint::reaches_peers() const {
  if (!options_.share_private_memory) return false;
  bool all_are_threads = true;
  for (int rank = 0; rank < peers().size(); ++rank) {
    if (!peers().can_reach(rank)) return false;
    all_are_threads = all_are_threads && peers().process(rank) == 0;
  }
  return all_are_threads || private_copies_pay();
}

void Endpoint::add_channel(const std::function<void()>& add) {
  std::lock_guard lock(mutex_);
  add();
}

void Endpoint::post(Channel& channel, const Posting& posting) {
  Channel::Task task;
  std::optional<std::size_t> place;
  WakeScope wake = WakeScope::nobody;
  {
    std::unique_lock lock(mutex_);
    if (channel.group().is_stopped()) {
      lock.unlock();
      channel.empty_next();
      channel.group().throw_failure();
    }
    if (std::find(busy_.begin(), busy_.end(), &channel) == busy_.end()) {
      busy_.push_back(&channel);
      busy_channels_.store(busy_.size(), std::memory_order_relaxed);
    }
    wake = channel.post_next(posting);
    bool is_idle = busy_.size() == 1 && channel.waits_for_peers();
    if (!is_idle) place = claim(ProgressScope::own_part, task);
  }
  if (wake != WakeScope::nobody) ring(channel.world_ranks(), wake == WakeScope::everybody);
  if (place) execute(task, *place);
  bool must_copy_in = channel.must_copy_in();
  if (must_copy_in) copy_in(channel);
  if (!place && !must_copy_in) return;
  while (progress(ProgressScope::own_part)) continue;
}

// As long as the peers keep up, what they have done makes room; when they do not, waiting is of no
// use, and the rest goes where there is room.
void Endpoint::copy_in(Channel& channel) {
  using CopyIn = Operation::CopyIn;
  SpinPolicy spin = spin_policy();
  bool spills = false;
  auto place = mark_copying_in(channel);
  for (;;) {
    CopyIn copied = channel.copy_in(spills);
    if (copied != CopyIn::no_room) ring(channel.world_ranks());
    if (copied == CopyIn::all) break;
    if (progress(copied == CopyIn::one ? ProgressScope::own_part : ProgressScope::anything) ||
        copied == CopyIn::one)
      spin.restart();
    else if (!spin.has_more())
      spills = true;
  }
  marks_.clear(place);
}

SpinPolicy Endpoint::spin_policy() { return {cores_, has_core_}; }

// Others execute meanwhile, and are soon done.
std::size_t Endpoint::mark_copying_in(const Channel& channel) {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (auto place = marks_.free_place()) {
        marks_.set(*place, execution_word(channel.key(), channel.posted()));
        return *place;
      }
    }
    sched_yield();
  }
}

std::optional<std::size_t> Endpoint::claim(ProgressScope scope, Channel::Task& task) {
  auto place = marks_.free_place();
  if (!claim_of_busy(place ? scope : ProgressScope::carried, task)) return std::nullopt;
  marks_.set(*place, execution_word(task.channel->key(), task.sequence));
  return place;
}

bool Endpoint::claim_of_busy(ProgressScope scope, Channel::Task& task) {
  for (std::size_t i = 0; i < busy_.size();) {
    Channel& channel = *busy_[i];
    if (channel.claim_next(scope, task)) return true;
    if (channel.completed() < channel.posted()) {
      ++i;
    } else {
      busy_.erase(busy_.begin() + static_cast<std::ptrdiff_t>(i));
      busy_channels_.store(busy_.size(), std::memory_order_relaxed);
    }
  }
  return false;
}

bool Endpoint::has_nothing_but(const Channel& channel) const {
  return busy_channels_.load(std::memory_order_relaxed) == 1 && !channel.is_settled() &&
         channel.misses_a_post();
}

bool Endpoint::progress(ProgressScope scope) {
  Channel::Task task;
  std::optional<std::size_t> place;
  {
    std::lock_guard lock(mutex_);
    place = claim(scope, task);
  }
  if (place) execute(task, *place);
  if (leaving_groups_.load(std::memory_order_relaxed) != 0) reap();
  return place.has_value();
}

bool Endpoint::try_progress(ProgressScope scope) noexcept {
  try {
    return progress(scope);
  } catch (const std::exception& error) {
    log::warning("shared memory: an operation waits for the next call of this rank: {}",
                 error.what());
    return false;
  }
}

void Endpoint::execute(const Channel::Task& task, std::size_t place) {
  Channel& channel = *task.channel;
  bool complete = false;
  try {
    complete = channel.execute(task, scratches_[place]);
  } catch (const std::exception& error) {
    // No other rank will claim this segment, so the operation cannot become complete.
    channel.group().fail_by_exception(channel, task.sequence, error);
  }
  marks_.clear(place);
  if (complete) ring(channel.world_ranks(), !task.is_whole);
  channel.end_task();
}

void Endpoint::ring(std::span<const int> world_ranks, bool helpers) {
  for (int rank : world_ranks) {
    Control& control = peers().control(rank);
    shm::ring(control.waiting);
    if (helpers) shm::ring(control.helper);
  }
}

template <typename IsOver, typename Overdue, typename BeforeSleep>
void Endpoint::wait_until(Channel& channel, Duration timeout, IsOver&& is_over, Overdue&& overdue,
                          BeforeSleep&& before_sleep) {
  Group& group = channel.group();
  SpinPolicy spin = spin_policy();
  std::optional<Limits> limits;  // most waits end before they look at a clock
  auto look = [&] {
    group.check_departures(channel);
    return progress(ProgressScope::anything) || is_over() || group.has_failed();
  };
  while (!is_over()) {
    if (!has_nothing_but(channel) && progress(ProgressScope::anything)) {
      spin.restart();
      continue;
    }
    if (is_over()) return;
    if (group.has_failed()) group.throw_failure();
    if (spin.has_more()) continue;
    if (!limits) limits.emplace(timeout);
    if (limits->deadline.passed()) {
      group.fail(FailureKind::timeout, overdue(timeout));
      continue;
    }
    if (limits->notice.passed()) {
      log::warning("{}", overdue(Clock::now() - limits->begin));
      limits->notice = Deadline::never();
    }
    before_sleep();
    Duration most =
        std::min<Duration>({limits->deadline.left(), limits->notice.left(), longest_sleep});
    sleep_until_rung(arena_->control().waiting, most, look);
  }
}

void Endpoint::wait(Channel& channel, std::uint64_t sequence, Duration timeout) {
  wait_until(
      channel, timeout, [&] { return channel.is_complete(sequence); },
      [&](Duration waited) { return channel.group().overdue(channel, waited); },
      [&] { (void)urge_late(channel); });
}

void Endpoint::wait_for_slot(Channel& channel, Duration timeout) {
  wait_until(
      channel, timeout, [&] { return channel.is_slot_free(); },
      [&](Duration waited) { return channel.group().unread(channel, waited); },
      [&] {
        nudge_members(channel, channel.slow_members());
        channel.group().check_readers(channel);
      });
}

void Endpoint::help() {
  while (!stopping_) {
    if (try_progress(ProgressScope::anything)) continue;
    sleep_until_rung(arena_->control().helper, longest_sleep,
                     [this] { return stopping_ || try_progress(ProgressScope::anything); });
  }
}

void Endpoint::on_peer_end(int rank) {
  if (has_gone(rank)) return;
  std::lock_guard lock(mutex_);
  lost_[rank] = 1;
  auto pid = peers().peer(rank).pid;
  auto process = pid > 0 ? std::to_string(pid) : std::string();
  for (auto& group : groups_) group->fail_by_end(rank, process);
}

}  // namespace lockstep::shm
