#include "comm/backends/shm/group_member.h"

#include "base/check.h"
#include "comm/backends/shm/channel_report.h"
#include "comm/call/record.h"
#include "comm/diagnose/report.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

namespace lockstep::shm {

GroupMember::GroupMember(ProgressEngine& progress, const PeerMappings& peers,
                         const PeerLiveness& liveness, GroupNames names, std::vector<int> members,
                         std::byte* block)
    : progress_(progress),
      shared_(peers, liveness, std::move(names), std::move(members), block),
      channels_(1 + 2 * static_cast<std::size_t>(size())) {
  (void)add_channel({}, this->block().collectives(), all_ranks(size()));
}

GroupMember::~GroupMember() {
  {
    std::lock_guard lock(progress_.mutex());
    progress_.remove(active_);
  }
  for (Channel* channel : active_) channel->leak_unfinished();
}

bool GroupMember::add_channel(ChannelKey key, ChannelMemory memory, std::vector<int> ranks) {
  auto channel = std::make_unique<Channel>(shared_, key, memory, std::move(ranks));
  std::scoped_lock lock(progress_.mutex(), active_mutex_);
  if (stopped_) return false;
  active_.push_back(channel.get());
  progress_.add(*channel);
  channels_[key.index_at(rank())] = std::move(channel);
  return true;
}

Channel& GroupMember::open_channel(ChannelKey key) {
  const auto index = key.index_at(rank());
  if (!channels_[index]) {
    auto memory = block().make_messages(shared_.peers(), key.source, key.destination);
    if (!add_channel(key, memory, {key.source, key.destination})) throw_failure();
    has_messages_ = true;
  }
  return *channels_[index];
}

void GroupMember::post(const CallInfo& info, CallBuffers buffers) {
  if (has_failed()) throw_failure();
  Channel& channel = open_channel(info.id.channel);
  const auto next = info.id.number;
  check(next == channel.posted() + 1, "shm: expected call {} of its channel, found call {}",
        channel.posted() + 1, next);
  const auto depth = static_cast<std::uint64_t>(channel.memory().depth());
  if (next > channel.finished() + depth) wait(channel, {.sequence = next - depth}, info.timeout);
  wait(channel, {.kind = Awaited::Kind::free_slot}, info.timeout);
  auto operands = channel.place(info, std::move(buffers));
  wait_for_conflicts(channel, operands, info.timeout);
  finish_complete();
  stage(channel, operands, info.timeout);
  channel.fill_next(info, std::move(operands));
  if (post_next(channel, info)) return;
  channel.empty_next();
  throw_failure();
}

// If the arena has no room for a copy of a tensor, waits for earlier operations of the channel,
// which all ranks post in the same order: their copies are freed then.
void GroupMember::stage(Channel& channel, Operands& operands, Duration timeout) {
  for (;;) {
    try {
      return operands.stage(shared_.peers());
    } catch (const BadInput&) {
      if (channel.finished() == channel.posted()) throw;
    }
    wait(channel, {.sequence = channel.finished() + 1}, timeout);
  }
}

bool GroupMember::post_next(Channel& channel, const CallInfo& info) {
  const auto before = channel.posted();
  try {
    return progress_.post(channel, info);
  } catch (const std::exception& error) {
    if (channel.posted() == before) {
      channel.empty_next();
    } else {
      fail_by_error(error);  // the caller does not count this call: numbers would differ
    }
    throw;
  }
}

void GroupMember::fail_by_error(const std::exception& error) const {
  try {
    fail(FailureKind::aborted, diagnose::aborted_sentence(rank(), error.what(), names()));
  } catch (const std::bad_alloc&) {
    fail(FailureKind::aborted, "a rank ended the group: it is out of memory");
  }
}

void GroupMember::wait_for_conflicts(const Channel& channel, const Operands& operands,
                                     Duration timeout) {
  for (Channel* earlier : active_) {
    if (auto sequence = earlier->last_conflict(&channel, operands))
      wait(*earlier, {.sequence = sequence}, timeout);
  }
}

void GroupMember::finish_complete() {
  for (Channel* channel : active_) {
    if (channel->finished() < channel->completed()) channel->finish(channel->completed());
  }
}

void GroupMember::wait(CallId id) {
  Channel& channel = this->channel(id);
  if (channel.finished() >= id.number) return;
  wait(channel, {.sequence = id.number}, channel.timeout_of(id.number));
  // Also finish complete operations whose Work was dropped.
  if (!has_messages_.load(std::memory_order_relaxed)) return;
  if (!has_unfinished_besides(channel)) return;
  while (progress_.progress(ProgressScope::anything)) continue;
  std::lock_guard lock(active_mutex_);
  finish_complete();
}

bool GroupMember::has_unfinished_besides(const Channel& channel) {
  std::lock_guard lock(active_mutex_);
  return std::ranges::any_of(active_, [&channel](const Channel* other) {
    return other != &channel && other->finished() < other->posted();
  });
}

void GroupMember::wait(Channel& channel, const Awaited& awaited, Duration timeout) {
  if (!channel.is_over(awaited) && !progress_.wait(channel, awaited, timeout)) throw_failure();
  if (awaited.kind == Awaited::Kind::completion) channel.finish(awaited.sequence);
}

bool GroupMember::done(CallId id) {
  Channel& channel = this->channel(id);
  const Awaited awaited{.sequence = id.number};
  if (channel.is_over(awaited)) return true;
  progress_.progress(ProgressScope::anything);
  if (channel.is_over(awaited) || has_failed()) return true;
  (void)progress_.urge(channel, awaited);
  channel.check_departures(awaited);
  return channel.is_over(awaited) || has_failed();
}

void GroupMember::fail_by_end(int world_rank, const std::string& process) const {
  auto place = std::ranges::find(members(), world_rank);
  if (place == members().end()) return;
  auto lost = lost_rank(channels_[0]->posted_calls(), static_cast<int>(place - members().begin()));
  lost.ended_process = process;
  fail(FailureKind::peer_lost, diagnose::lost_sentence(lost, names()));
}

void GroupMember::throw_failure() {
  std::call_once(settled_, [this] { unsettled_ = settle(); });
  shared_.throw_failure(unsettled_);
}

void GroupMember::leave(bool by_exception) const {
  const std::uint32_t why = by_exception ? GroupBlock::by_exception : 0;
  block().left(rank()).store(GroupBlock::posts_no_more | why, std::memory_order_seq_cst);
}

void GroupMember::go() const {
  block().release_hold(shared_.peers(), rank());
  auto& left = block().left(rank());
  const auto why = left.load(std::memory_order_relaxed) & GroupBlock::by_exception;
  left.store(GroupBlock::gone | why, std::memory_order_release);
}

bool GroupMember::is_settled() const {
  return std::ranges::all_of(active_, [](const Channel* channel) { return channel->is_settled(); });
}

bool GroupMember::is_deserted() const {
  for (int number = 0; number < size(); ++number) {
    if (!shared_.has_departed(number) && !shared_.liveness().has_ended(shared_.world_rank(number)))
      return false;
  }
  return true;
}

// Aftermath: what a process does after its group has failed and before it throws the error, so that
// callers may use their tensors again.
//
// A peer that executes a segment when the group fails finishes the segment, and writes into tensors
// of this rank. So each rank that notices the failure stops, waits until no process executes an
// operation of the group, and only then throws. A stopped process may finish its segment at any
// later time, so the output of its operation gets new memory, and the old memory is never used
// again.
namespace {

// A segment takes less than a millisecond, but longer if processes share cores.
constexpr auto patience_with_writers = std::chrono::milliseconds(300);
constexpr auto look_at_writers_again = std::chrono::microseconds(50);

struct Writer {
  int number;  // in the group
  std::uint64_t word;
};

// Returns the marks of the group's operations by processes that have not ended.
std::vector<Writer> writers_in(const SharedGroupState& group,
                               const std::vector<Channel*>& channels) {
  std::vector<Writer> found;
  for (int number = 0; number < group.size(); ++number) {
    const int world_rank = group.world_rank(number);
    if (!group.liveness().is_alive(world_rank)) continue;
    visit_marks(group.peers(), world_rank, [&](std::uint64_t word) {
      bool is_ours = std::ranges::any_of(
          channels, [word](const Channel* channel) { return is_of_channel(word, channel->key()); });
      if (is_ours) found.push_back({number, word});
    });
  }
  return found;
}

}  // namespace

std::string GroupMember::settle() {
  {
    std::lock_guard lock(progress_.mutex());
    stopped_ = true;
    progress_.stop(active_);
  }
  auto deadline = Deadline::after(patience_with_writers);
  auto left = writers_in(shared_, active_);
  while (!left.empty() && !deadline.passed()) {
    std::this_thread::sleep_for(look_at_writers_again);
    left = writers_in(shared_, active_);
  }
  std::string text;
  for (Channel* channel : active_) {
    channel->end_unfinished([&](Operation& operation) {
      auto word = execution_word(channel->key(), operation.sequence());
      auto writer = std::ranges::find(left, word, &Writer::word);
      if (writer == left.end()) return operation.release();
      auto problem = renew(operation);
      operation.operands().leak();
      if (!problem.empty())
        text += diagnose::words_of_writer(writer->number, channel->own_call(operation.sequence()),
                                          problem, names());
    });
  }
  return text;
}

std::string GroupMember::renew(Operation& operation) {
  Operands& operands = operation.operands();
  Buffer exposed = operands.exposed();
  if (exposed.bytes == 0) return {};
  if (operands.is_shared(shared_.peers())) return "it is memory that ranks share";
  KeepAlive& kept = operands.kept_output();
  Buffer memory = kept.memory();
  if (memory.bytes == 0) return "its memory is the caller's own";
  if (!overlap(memory, exposed)) return {};  // its owner has given it new memory
  if (progress_.is_used_besides(shared_, memory)) return "other groups use its memory, too";
  return kept.renew() ? std::string() : "there is no other memory";
}

}  // namespace lockstep::shm
