#include "comm/backends/shm/shared_group_state.h"

#include "base/escaped.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

namespace lockstep::shm {
namespace {

std::size_t channel_words_offset(int members) {
  return round_up(sizeof(GroupHeader)) + round_up(sizeof(std::atomic<std::uint32_t>) * members);
}

// Aligned to a pair of cache lines, which processors fetch together. Otherwise a slot's line and
// data that other ranks write would share a pair, which costs another transfer between cores.
std::size_t collectives_offset(int members) {
  constexpr std::size_t pair = 128;
  std::size_t words_end =
      channel_words_offset(members) + sizeof(std::atomic<std::uint64_t>) * members * members;
  return (words_end + pair - 1) / pair * pair;
}

void release_hold_of(const PeerMappings& peers, std::uint64_t word) {
  if (word != 0) Arena::release_hold(peers.address(RemoteAddress::of(word)));
}

constexpr ChannelSize message_channel{2, GroupBlock::message_depth,
                                      GroupBlock::message_inline_bytes};

ChannelSize collective_channel(int members) {
  return {members, GroupBlock::collective_depth, GroupBlock::collective_inline_bytes(members)};
}

}  // namespace

std::size_t GroupBlock::bytes(int members) {
  return collectives_offset(members) + ChannelMemory::bytes(collective_channel(members));
}

std::atomic<std::uint32_t>& GroupBlock::left(int member) const {
  return reinterpret_cast<std::atomic<std::uint32_t>*>(base_ +
                                                       round_up(sizeof(GroupHeader)))[member];
}

bool GroupBlock::everyone_is_gone() const {
  for (int member = 0; member < members_; ++member) {
    if ((left(member).load(std::memory_order_acquire) & gone) == 0) return false;
  }
  return true;
}

ChannelMemory GroupBlock::collectives() const {
  return {base_ + collectives_offset(members_), collective_channel(members_)};
}

std::atomic<std::uint64_t>& GroupBlock::channel_word(int source, int destination) const {
  auto* words =
      reinterpret_cast<std::atomic<std::uint64_t>*>(base_ + channel_words_offset(members_));
  return words[source * members_ + destination];
}

std::optional<ChannelMemory> GroupBlock::messages(const PeerMappings& peers, int source,
                                                  int destination) const {
  auto word = channel_word(source, destination).load(std::memory_order_acquire);
  if (word == 0) return std::nullopt;
  return ChannelMemory(peers.address(RemoteAddress::of(word)), message_channel);
}

ChannelMemory GroupBlock::make_messages(const PeerMappings& peers, int source,
                                        int destination) const {
  if (auto there = messages(peers, source, destination)) return *there;
  auto bytes = ChannelMemory::bytes(message_channel);
  auto* block = peers.arena()->allocate_held(bytes, message_channel.members);
  std::memset(block, 0, bytes);
  std::uint64_t none = 0;
  bool is_first = channel_word(source, destination)
                      .compare_exchange_strong(none, peers.locate(block, bytes).word(),
                                               std::memory_order_acq_rel);
  if (is_first) return {block, message_channel};
  for (int holder = 0; holder < message_channel.members; ++holder) Arena::release_hold(block);
  return *messages(peers, source, destination);
}

void GroupBlock::release_hold(const PeerMappings& peers, int member) const {
  for (int other = 0; other < members_; ++other) {
    release_hold_of(peers, channel_word(member, other).load(std::memory_order_acquire));
    release_hold_of(peers, channel_word(other, member).load(std::memory_order_acquire));
    release_hold_of(peers, collectives().counts_word(other).load(std::memory_order_acquire));
  }
}

SharedGroupState::SharedGroupState(const PeerMappings& peers, const PeerLiveness& liveness,
                                   GroupNames names, std::vector<int> members, std::byte* block)
    : peers_(peers),
      liveness_(liveness),
      names_(std::move(names)),
      members_(std::move(members)),
      block_(block, size()),
      rank_(static_cast<int>(std::ranges::find(members_, peers.rank()) - members_.begin())) {}

bool SharedGroupState::has_departed(int number) const {
  return block_.left(number).load(std::memory_order_seq_cst) != GroupBlock::present ||
         liveness_.has_left(world_rank(number));
}

bool SharedGroupState::has_left_by_exception(int number) const {
  return (block_.left(number).load(std::memory_order_relaxed) & GroupBlock::by_exception) != 0;
}

bool SharedGroupState::executes(int number, std::uint64_t word) const {
  bool found = false;
  visit_marks(peers_, world_rank(number), [&](std::uint64_t mark) { found |= mark == word; });
  return found;
}

void SharedGroupState::fail(FailureKind kind, std::string_view text) const {
  SharedFailure& failure = block_.failure();
  std::uint32_t expected = SharedFailure::alive;
  if (failure.state.compare_exchange_strong(expected, SharedFailure::being_written,
                                            std::memory_order_acq_rel)) {
    failure.kind.store(static_cast<std::uint32_t>(kind), std::memory_order_relaxed);
    failure.text.store(shortened(text, failure.text.capacity));
    failure.state.store(SharedFailure::written, std::memory_order_seq_cst);
  }
  peers_.ring(members_);
}

void SharedGroupState::throw_failure(std::string_view more) const {
  const SharedFailure& failure = block_.failure();
  // The rank that began to write the text may be stopped or dead, so do not wait long.
  auto patience = Deadline::after(std::chrono::milliseconds(200));
  while (failure.state.load(std::memory_order_acquire) != SharedFailure::written) {
    if (patience.passed()) throw Aborted(diagnose::untold_sentence(names_) + std::string(more));
    std::this_thread::yield();
  }
  std::rethrow_exception(
      diagnose::error_of(static_cast<FailureKind>(failure.kind.load(std::memory_order_relaxed)),
                         failure.text.load() + std::string(more)));
}

}  // namespace lockstep::shm
