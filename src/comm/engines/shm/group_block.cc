#include "comm/engines/shm/group_block.h"

#include <cstring>

namespace lockstep::shm {
namespace {

std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::size_t channel_words_offset(int members) {
  return round_up(sizeof(GroupHeader)) + round_up(sizeof(std::atomic<std::uint32_t>) * members);
}

// At the beginning of a pair of cache lines, which processors fetch together: half a pair later, a
// slot's line and what ranks write beside it cost one more way between the cores.
std::size_t collectives_offset(int members) {
  constexpr std::size_t pair = 128;
  std::size_t words_end =
      channel_words_offset(members) + sizeof(std::atomic<std::uint64_t>) * members * members;
  return (words_end + pair - 1) / pair * pair;
}

void release_hold_of(const Peers& peers, std::uint64_t word) {
  if (word != 0) Arena::release_hold(peers.address(Location::of(word)));
}

constexpr ChannelSize message_channel{2, GroupBlock::message_depth,
                                      GroupBlock::message_carried_bytes};

ChannelSize collective_channel(int members) {
  return {members, GroupBlock::collective_depth, GroupBlock::collective_carried_bytes(members)};
}

}  // namespace

ChannelMemory::ChannelMemory(std::byte* base, ChannelSize size)
    : base_(base),
      members_(size.members),
      depth_(size.depth),
      carried_bytes_(size.carried_bytes),
      carried_(sizeof(Slot) * members_ * depth_),
      words_(carried_ + carried_bytes_ * members_ * depth_),
      consumed_(words_ + line_bytes * (members_ + 1) * depth_),
      counts_(consumed_ + line_bytes * members_) {}

std::size_t ChannelMemory::bytes(const ChannelSize& size) {
  return round_up(ChannelMemory(nullptr, size).counts_ +
                  sizeof(std::atomic<std::uint64_t>) * size.members);
}

CountsMemory ChannelMemory::counts(const Peers& peers, int member) const {
  auto word = counts_word(member).load(std::memory_order_acquire);
  return {peers.address(Location::of(word)), members_, depth_};
}

void ChannelMemory::make_counts(const Peers& peers, int me) const {
  if (counts_word(me).load(std::memory_order_relaxed) != 0) return;
  auto bytes = CountsMemory::bytes(members_, depth_);
  auto* block = peers.arena()->allocate_held(bytes, members_);
  counts_word(me).store(peers.locate(block, bytes).word(), std::memory_order_release);
}

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

std::optional<ChannelMemory> GroupBlock::messages(const Peers& peers, int source,
                                                  int destination) const {
  auto word = channel_word(source, destination).load(std::memory_order_acquire);
  if (word == 0) return std::nullopt;
  return ChannelMemory(peers.address(Location::of(word)), message_channel);
}

ChannelMemory GroupBlock::make_messages(const Peers& peers, int source, int destination) const {
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

void GroupBlock::release_hold(const Peers& peers, int member) const {
  for (int other = 0; other < members_; ++other) {
    release_hold_of(peers, channel_word(member, other).load(std::memory_order_acquire));
    release_hold_of(peers, channel_word(other, member).load(std::memory_order_acquire));
    release_hold_of(peers, collectives().counts_word(other).load(std::memory_order_acquire));
  }
}

}  // namespace lockstep::shm
