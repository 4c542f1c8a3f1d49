#include "comm/engines/shm/group.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "comm/engines/shm/aftermath.h"
#include "comm/engines/shm/endpoint.h"
#include "comm/engines/shm/posted_calls.h"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <system_error>
#include <thread>

namespace lockstep::shm {
namespace {

constexpr int sequence_bits = 44;  // of a ticket; above them the lane

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::uint64_t ticket_of(std::size_t lane, std::uint64_t sequence) {
  return std::uint64_t{lane} << sequence_bits | sequence;
}

}  // namespace

Group::Group(Endpoint& endpoint, std::string name, std::vector<int> members, std::byte* block)
    : endpoint_(endpoint),
      name_(std::move(name)),
      members_(std::move(members)),
      block_(block, size()),
      lanes_(1 + 2 * members_.size()) {
  auto me = std::find(members_.begin(), members_.end(), endpoint.peers().rank());
  rank_ = static_cast<int>(me - members_.begin());
  lanes_[0] = std::make_unique<Lane>(*this, endpoint.peers(), 0, block_.collectives(),
                                     all_ranks(size()), rank_);
  active_.push_back(lanes_[0].get());
}

Group::~Group() {
  for (Lane* lane : active_) lane->pin_unfinished();
}

Lane& Group::lane_of(const Posting& posting) {
  bool sends = posting.collective == Collective::send;
  if (!sends && posting.collective != Collective::recv) return *lanes_[0];
  int source = sends ? rank_ : posting.root;
  int destination = sends ? posting.root : rank_;
  std::size_t index = 1 + 2 * static_cast<std::size_t>(posting.root) + (sends ? 0 : 1);
  if (!lanes_[index]) {
    auto memory = block_.make_messages(endpoint_.peers(), source, destination);
    auto lane = std::make_unique<Lane>(*this, endpoint_.peers(), index, memory,
                                       std::vector<int>{source, destination}, sends ? 0 : 1);
    endpoint_.add_lane([&] {
      if (stopped_) return;
      std::lock_guard lock(active_mutex_);
      lanes_[index] = std::move(lane);
      active_.push_back(lanes_[index].get());
      has_messages_ = true;
    });
    if (!lanes_[index]) throw_failure();
  }
  return *lanes_[index];
}

Lane& Group::lane_of(std::uint64_t ticket) { return *lanes_[ticket >> sequence_bits]; }

std::uint64_t Group::post(Posting& posting) {
  if (has_failed()) throw_failure();
  Lane& lane = lane_of(posting);
  auto depth = static_cast<std::uint64_t>(lane.memory().depth());
  if (lane.posted() >= lane.finished() + depth)
    wait(lane, lane.posted() + 1 - depth, posting.timeout);
  if (!lane.is_slot_free()) endpoint_.wait_for_slot(lane, posting.timeout);
  order_after_conflicts(lane, posting);
  finish_complete();
  lane.fill_next(posting);
  endpoint_.post(lane, posting);
  return ticket_of(lane.index(), lane.posted());
}

void Group::order_after_conflicts(const Lane& lane, const Posting& posting) {
  for (Lane* earlier : active_) {
    if (auto sequence = earlier->last_conflict(&lane, posting))
      wait(*earlier, sequence, posting.timeout);
  }
}

void Group::finish_complete() {
  for (Lane* lane : active_) {
    if (lane->finished() < lane->completed()) lane->finish(lane->completed());
  }
}

void Group::wait(std::uint64_t ticket) {
  Lane& lane = lane_of(ticket);
  std::uint64_t sequence = ticket & ((std::uint64_t{1} << sequence_bits) - 1);
  if (lane.finished() >= sequence) return;
  wait(lane, sequence, lane.timeout_of(sequence));
  // What was dropped before comes with it, as far as all ranks have posted it.
  if (!has_messages_.load(std::memory_order_relaxed)) return;
  if (!has_unfinished_besides(lane)) return;
  while (endpoint_.progress(Appetite::anything)) continue;
  std::lock_guard lock(active_mutex_);
  finish_complete();
}

bool Group::has_unfinished_besides(const Lane& lane) {
  std::lock_guard lock(active_mutex_);
  return std::any_of(active_.begin(), active_.end(), [&lane](const Lane* other) {
    return other != &lane && other->finished() < other->posted();
  });
}

void Group::wait(Lane& lane, std::uint64_t sequence, Duration timeout) {
  if (lane.finished() >= sequence) return;
  if (!lane.is_complete(sequence)) endpoint_.wait(lane, sequence, timeout);
  lane.finish(sequence);
}

bool Group::done(std::uint64_t ticket) {
  Lane& lane = lane_of(ticket);
  std::uint64_t sequence = ticket & ((std::uint64_t{1} << sequence_bits) - 1);
  if (lane.is_complete(sequence)) return true;
  endpoint_.progress(Appetite::anything);
  if (lane.is_complete(sequence) || has_failed()) return true;
  (void)endpoint_.urge_late(lane);
  check_departures(lane);
  return lane.is_complete(sequence) || has_failed();
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

void Group::fail_by_mismatch(const Lane& lane, std::uint64_t sequence, int other) {
  fail(FailureKind::mismatch,
       difference_between(lane.posted_calls(), sequence, lane.me(), other) + of_group());
}

void Group::fail_by_memory(const Lane& lane, std::uint64_t sequence, int error) {
  if (error == ESRCH) return;  // it ended; the watcher says so better
  fail(FailureKind::aborted,
       formatted("rank {} could not reach a peer's private memory in {}: {}{}", rank_,
                 describe(lane.own_call(sequence)), std::generic_category().message(error),
                 of_group()));
}

void Group::fail_by_exception(const Lane& lane, std::uint64_t sequence,
                              const std::exception& error) {
  fail(FailureKind::aborted,
       formatted("rank {} could not execute its part of {}: {}{}", rank_,
                 describe(lane.own_call(sequence)), error.what(), of_group()));
}

void Group::fail_by_loss(int number, std::string_view how) {
  fail(FailureKind::peer_lost,
       diagnose::lost_sentence(number, size(), members_[number], how, name_));
}

void Group::fail_by_end(int world_rank, const std::string& process) {
  auto place = std::find(members_.begin(), members_.end(), world_rank);
  if (place == members_.end()) return;
  auto number = static_cast<int>(place - members_.begin());
  auto lost = lost_rank(lanes_[0]->posted_calls(), number);
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
  for (Lane* lane : active_) {
    std::uint64_t sequence = lane->last_in_private_memory();
    if (sequence == 0) continue;
    try {
      if (by_exception && !lane->is_complete(sequence)) {
        return fail_by_loss(rank_, formatted("an exception ended its part before its peers had "
                                             "taken what it posted in {}",
                                             describe(lane->own_call(sequence))));
      }
      wait(*lane, sequence, std::min<Duration>(lane->timeout_of(sequence), deadline.left()));
    } catch (const std::exception&) {
      return;  // the group is dead, and ranks that still wait in it are told why
    }
  }
}

void Group::stop() {
  stopped_ = true;
  for (Lane* lane : active_) lane->stop();
}

void Group::leave() {
  left_ = true;
  block_.left(rank_).store(GroupBlock::posts_no_more, std::memory_order_seq_cst);
}

void Group::let_go() const { block_.let_go(endpoint_.peers(), rank_); }

bool Group::is_settled() const {
  return std::all_of(active_.begin(), active_.end(),
                     [](const Lane* lane) { return lane->is_settled(); });
}

bool Group::has_departed(int number) const {
  return block_.left(number).load(std::memory_order_seq_cst) != GroupBlock::present ||
         endpoint_.has_departed(members_[number]);
}

void Group::check_departures(const Lane& lane) {
  std::uint64_t sequence = lane.completed() + 1;
  if (sequence > lane.posted()) return;
  for (int member = 0; member < lane.memory().members(); ++member) {
    int number = lane.ranks()[member];
    const Slot& slot = lane.memory().slot(member, sequence);
    if (has_posted(slot, sequence)) continue;
    // It may have posted just before it left.
    if (!has_departed(number) || has_posted(slot, sequence)) continue;
    auto calls = lane.posted_calls();
    diagnose::LostRank lost{
        .rank = number,
        .size = size(),
        .world_rank = members_[number],
        .status = diagnose::PeerStatus{.rank = number, .last = calls.last(member)},
        .call = calls.call(lane.me(), sequence),
        .waiting = {rank_}};
    return fail(FailureKind::peer_lost, diagnose::lost_sentence(lost, name_));
  }
}

void Group::check_readers(const Lane& lane) {
  for (int number : lane.slow_members()) {
    if (!has_departed(number)) continue;
    // It may have read, and posted, just before it left.
    auto slow = lane.slow_members();
    if (std::ranges::find(slow, number) == slow.end()) continue;
    return fail_by_loss(number, formatted("it left in order before operation #{}, which rank {} "
                                          "waits to post",
                                          lane.posted() + 1, rank_));
  }
}

std::string Group::overdue(const Lane& lane, Duration waited) const {
  const auto sequence = lane.completed() + 1;
  const auto calls = lane.posted_calls();
  if (auto late = endpoint_.urge_late(lane); !late.empty())
    return formatted("after {}: {} posted small operations before {} and did not carry them out{}",
                     format_duration(waited), rank_list(late), describe(lane.own_call(sequence)),
                     of_group());
  auto is_executing = [&](int number) {
    const auto word = execution_word(lane.key(), sequence);
    bool found = false;
    endpoint_.marks().visit(members_[number], [&](std::uint64_t mark) { found |= mark == word; });
    return found;
  };
  return diagnose::overdue_sentence(
      lane.own_call(sequence), statuses_of(calls, block_, sequence, is_executing), waited, name_);
}

std::string Group::unread(const Lane& lane, Duration waited) const {
  return formatted(
      "after {}: {} posted {} operations without ever looking at the first of them; "
      "rank {} waits to post the next{}",
      format_duration(waited), rank_list(lane.slow_members()), lane.memory().depth(), rank_,
      of_group());
}

std::string Group::of_group() const { return diagnose::words_of_group(name_); }

}  // namespace lockstep::shm
