#include "comm/shm/group_block.h"

namespace lockstep::shm {
namespace {

std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::size_t collectives_offset(int members) {
  return round_up(sizeof(GroupHeader)) + round_up(sizeof(std::atomic<std::uint32_t>) * members);
}

constexpr LaneSize message_lane{2, GroupBlock::message_depth, GroupBlock::message_carried_bytes};

LaneSize collective_lane(int members) {
  return {members, GroupBlock::collective_depth, GroupBlock::collective_carried_bytes};
}

}  // namespace

LaneMemory::LaneMemory(std::byte* base, LaneSize size)
    : base_(base),
      members_(size.members),
      depth_(size.depth),
      carried_bytes_(size.carried_bytes),
      carried_(sizeof(Slot) * members_ * depth_),
      words_(carried_ + carried_bytes_ * members_ * depth_),
      consumed_(words_ + line_bytes * (members_ + 1) * depth_),
      counts_(consumed_ + line_bytes * members_) {}

std::size_t LaneMemory::bytes(const LaneSize& size, bool with_counts) {
  std::size_t counts =
      with_counts ? sizeof(std::int64_t) * 2 * size.members * size.members * size.depth : 0;
  return round_up(LaneMemory(nullptr, size).counts_ + counts);
}

std::size_t GroupBlock::bytes(int members) {
  return collectives_offset(members) + LaneMemory::bytes(collective_lane(members), true) +
         LaneMemory::bytes(message_lane, false) * members * members;
}

std::atomic<std::uint32_t>& GroupBlock::left(int member) const {
  return reinterpret_cast<std::atomic<std::uint32_t>*>(base_ +
                                                       round_up(sizeof(GroupHeader)))[member];
}

bool GroupBlock::everyone_is_gone() const {
  for (int member = 0; member < members_; ++member) {
    if (left(member).load(std::memory_order_acquire) != gone) return false;
  }
  return true;
}

LaneMemory GroupBlock::collectives() const {
  return {base_ + collectives_offset(members_), collective_lane(members_)};
}

LaneMemory GroupBlock::messages(int source, int destination) const {
  std::size_t before = LaneMemory::bytes(message_lane, false) * (source * members_ + destination);
  std::size_t first =
      collectives_offset(members_) + LaneMemory::bytes(collective_lane(members_), true);
  return {base_ + first + before, message_lane};
}

}  // namespace lockstep::shm
