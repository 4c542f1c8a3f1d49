#include "comm/engines/shm/group.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/text.h"
#include "comm/call/all_ranks.h"
#include "comm/engines/shm/aftermath.h"
#include "comm/engines/shm/endpoint.h"
#include "comm/engines/shm/posted_calls.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

namespace lockstep::shm {
namespace {}  // namespace

Group::Group(Endpoint& endpoint, std::string name, std::vector<int> members, std::byte* block)
    : endpoint_(endpoint),
      name_(std::move(name)),
      members_(std::move(members)),
      block_(block, size()),
      channels_(1 + 2 * members_.size()) {
  auto me = std::find(members_.begin(), members_.end(), endpoint.peers().rank());
  rank_ = static_cast<int>(me - members_.begin());
  channels_[0] = std::make_unique<Channel>(*this, endpoint.peers(), 0, block_.collectives(),
                                           all_ranks(size()), rank_);
  active_.push_back(channels_[0].get());
}

Group::~Group() {
  for (Channel* channel : active_) channel->leak_unfinished();
}

Channel& Group::open_channel(ChannelKey key) {
  auto index = key.index_at(rank_);
  if (!channels_[index]) {
    auto memory = block_.make_messages(endpoint_.peers(), key.source, key.destination);
    auto channel = std::make_unique<Channel>(*this, endpoint_.peers(), index, memory,
                                             std::vector<int>{key.source, key.destination},
                                             key.source == rank_ ? 0 : 1);
    endpoint_.add_channel([&] {
      if (stopped_) return;
      std::lock_guard lock(active_mutex_);
      channels_[index] = std::move(channel);
      active_.push_back(channels_[index].get());
      has_messages_ = true;
    });
    if (!channels_[index]) throw_failure();
  }
  return *channels_[index];
}

CallId Group::post(Posting& posting) {
  if (has_failed()) throw_failure();
  const auto key = channel_of(posting.collective, posting.root, rank_);
  Channel& channel = open_channel(key);
  auto depth = static_cast<std::uint64_t>(channel.memory().depth());
  if (channel.posted() >= channel.finished() + depth)
    wait(channel, channel.posted() + 1 - depth, posting.timeout);
  if (!channel.is_slot_free()) endpoint_.wait_for_slot(channel, posting.timeout);
  const auto path = channel.choose_path(posting);
  order_after_conflicts(channel, path, posting);
  finish_complete();
  channel.fill_next(path, posting);
  endpoint_.post(channel, posting);
  return {key, channel.posted()};
}

void Group::order_after_conflicts(const Channel& channel, const DataPath& path,
                                  const Posting& posting) {
  for (Channel* earlier : active_) {
    if (auto sequence = earlier->last_conflict(&channel, path, posting))
      wait(*earlier, sequence, posting.timeout);
  }
}

void Group::finish_complete() {
  for (Channel* channel : active_) {
    if (channel->finished() < channel->completed()) channel->finish(channel->completed());
  }
}

void Group::wait(CallId id) {
  Channel& channel = this->channel(id);
  if (channel.finished() >= id.number) return;
  wait(channel, id.number, channel.timeout_of(id.number));
  // What was dropped before comes with it, as far as all ranks have posted it.
  if (!has_messages_.load(std::memory_order_relaxed)) return;
  if (!has_unfinished_besides(channel)) return;
  while (endpoint_.progress(ProgressScope::anything)) continue;
  std::lock_guard lock(active_mutex_);
  finish_complete();
}

bool Group::has_unfinished_besides(const Channel& channel) {
  std::lock_guard lock(active_mutex_);
  return std::any_of(active_.begin(), active_.end(), [&channel](const Channel* other) {
    return other != &channel && other->finished() < other->posted();
  });
}

void Group::wait(Channel& channel, std::uint64_t sequence, Duration timeout) {
  if (channel.finished() >= sequence) return;
  if (!channel.is_complete(sequence)) endpoint_.wait(channel, sequence, timeout);
  channel.finish(sequence);
}

bool Group::done(CallId id) {
  Channel& channel = this->channel(id);
  const auto sequence = id.number;
  if (channel.is_complete(sequence)) return true;
  endpoint_.progress(ProgressScope::anything);
  if (channel.is_complete(sequence) || has_failed()) return true;
  (void)endpoint_.urge_late(channel);
  check_departures(channel);
  return channel.is_complete(sequence) || has_failed();
}

void Group::fail(FailureKind kind, std::string_view text) {
  SharedFailure& failure = block_.failure();
  std::uint32_t expected = SharedFailure::alive;
  if (failure.state.compare_exchange_strong(expected, SharedFailure::being_written,
                                            std::memory_order_acq_rel)) {
    failure.kind.store(static_cast<std::uint32_t>(kind), std::memory_order_relaxed);
    failure.text.store(text);
    failure.state.store(SharedFailure::written, std::memory_order_seq_cst);
  }
  endpoint_.ring(members_);
}

void Group::fail_by_mismatch(const Channel& channel, std::uint64_t sequence, int other) {
  fail(FailureKind::mismatch,
       difference_between(channel.posted_calls(), sequence, channel.me(), other) + of_group());
}

void Group::fail_by_memory(const Channel& channel, std::uint64_t sequence, int error) {
  if (error == ESRCH) return;  // it ended; the watcher says so better
  fail(FailureKind::aborted,
       formatted("rank {} could not reach a peer's private memory in {}: {}{}", rank_,
                 describe(channel.own_call(sequence)), std::generic_category().message(error),
                 of_group()));
}

void Group::fail_by_exception(const Channel& channel, std::uint64_t sequence,
                              const std::exception& error) {
  fail(FailureKind::aborted,
       formatted("rank {} could not execute its part of {}: {}{}", rank_,
                 describe(channel.own_call(sequence)), error.what(), of_group()));
}

void Group::fail_by_loss(int number, std::string_view how) {
  fail(FailureKind::peer_lost,
       diagnose::lost_sentence(number, size(), members_[number], how, name_));
}

void Group::fail_by_end(int world_rank, const std::string& process) {
  auto place = std::find(members_.begin(), members_.end(), world_rank);
  if (place == members_.end()) return;
  auto number = static_cast<int>(place - members_.begin());
  auto lost = lost_rank(channels_[0]->posted_calls(), number);
  lost.world_rank = world_rank;
  lost.ended_process = process;
  fail(FailureKind::peer_lost, diagnose::lost_sentence(lost, name_));
}

void Group::throw_failure() {
  std::call_once(settled_, [this] { unsettled_ = Aftermath(endpoint_, *this).settle(); });
  const SharedFailure& failure = block_.failure();
  // The rank that began to write it may be stopped or dead; its text is then not worth a wait.
  auto patience = Deadline::after(std::chrono::milliseconds(200));
  while (failure.state.load(std::memory_order_acquire) != SharedFailure::written) {
    if (patience.passed())
      throw Aborted("the group died, and the rank that found out why did not get to say it" +
                    of_group() + unsettled_);
    std::this_thread::yield();
  }
  auto text = failure.text.load() + unsettled_;
  std::rethrow_exception(diagnose::error_of(
      static_cast<FailureKind>(failure.kind.load(std::memory_order_relaxed)), text));
}

void Group::let_peers_finish(Deadline deadline, bool by_exception) noexcept {
  for (Channel* channel : active_) {
    std::uint64_t sequence = channel->last_in_private_memory();
    if (sequence == 0) continue;
    try {
      if (by_exception && !channel->is_complete(sequence)) {
        return fail_by_loss(rank_, formatted("an exception ended its part before its peers had "
                                             "taken what it posted in {}",
                                             describe(channel->own_call(sequence))));
      }
      wait(*channel, sequence, std::min<Duration>(channel->timeout_of(sequence), deadline.left()));
    } catch (const std::exception&) {
      return;  // the group is dead, and ranks that still wait in it are told why
    }
  }
}

void Group::stop() {
  stopped_ = true;
  for (Channel* channel : active_) channel->stop();
}

void Group::leave() {
  left_ = true;
  block_.left(rank_).store(GroupBlock::posts_no_more, std::memory_order_seq_cst);
}

void Group::release_hold() const { block_.release_hold(endpoint_.peers(), rank_); }

bool Group::is_settled() const {
  return std::all_of(active_.begin(), active_.end(),
                     [](const Channel* channel) { return channel->is_settled(); });
}

bool Group::has_departed(int number) const {
  return block_.left(number).load(std::memory_order_seq_cst) != GroupBlock::present ||
         endpoint_.has_departed(members_[number]);
}

void Group::check_departures(const Channel& channel) {
  std::uint64_t sequence = channel.completed() + 1;
  if (sequence > channel.posted()) return;
  for (int member = 0; member < channel.memory().members(); ++member) {
    int number = channel.ranks()[member];
    const Slot& slot = channel.memory().slot(member, sequence);
    if (has_posted(slot, sequence)) continue;
    // It may have posted just before it left.
    if (!has_departed(number) || has_posted(slot, sequence)) continue;
    auto calls = channel.posted_calls();
    diagnose::LostRank lost{
        .rank = number,
        .size = size(),
        .world_rank = members_[number],
        .status = diagnose::PeerStatus{.rank = number, .last = calls.last(member)},
        .call = calls.call(channel.me(), sequence),
        .waiting = {rank_}};
    return fail(FailureKind::peer_lost, diagnose::lost_sentence(lost, name_));
  }
}

void Group::check_readers(const Channel& channel) {
  for (int number : channel.slow_members()) {
    if (!has_departed(number)) continue;
    // It may have read, and posted, just before it left.
    auto slow = channel.slow_members();
    if (std::ranges::find(slow, number) == slow.end()) continue;
    return fail_by_loss(number, formatted("it left in order before operation #{}, which rank {} "
                                          "waits to post",
                                          channel.posted() + 1, rank_));
  }
}

std::string Group::overdue(const Channel& channel, Duration waited) const {
  const auto sequence = channel.completed() + 1;
  const auto calls = channel.posted_calls();
  if (auto late = endpoint_.urge_late(channel); !late.empty())
    return formatted("after {}: {} posted small operations before {} and did not carry them out{}",
                     format_duration(waited), rank_list(late), describe(channel.own_call(sequence)),
                     of_group());
  auto is_executing = [&](int number) {
    const auto word = execution_word(channel.key(), sequence);
    bool found = false;
    endpoint_.marks().visit(members_[number], [&](std::uint64_t mark) { found |= mark == word; });
    return found;
  };
  return diagnose::overdue_sentence(channel.own_call(sequence),
                                    statuses_of(calls, block_, sequence, is_executing), waited,
                                    name_);
}

std::string Group::unread(const Channel& channel, Duration waited) const {
  return formatted(
      "after {}: {} posted {} operations without ever looking at the first of them; "
      "rank {} waits to post the next{}",
      format_duration(waited), rank_list(channel.slow_members()), channel.memory().depth(), rank_,
      of_group());
}

std::string Group::of_group() const { return diagnose::words_of_group(name_); }

}  // namespace lockstep::shm
