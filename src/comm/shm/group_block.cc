#include "comm/shm/group_block.h"

namespace lockstep::shm {
namespace {

std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::size_t collectives_offset(int members) {
  return round_up(sizeof(GroupHeader)) + round_up(sizeof(std::atomic<std::uint32_t>) * members);
}

}  // namespace

std::size_t LaneMemory::bytes(int members, int depth, bool with_counts) {
  std::size_t counts = with_counts ? sizeof(std::int64_t) * 2 * members * members * depth : 0;
  return round_up(slots_bytes(members, depth) + words_bytes(members, depth) + counts);
}

std::atomic<std::int64_t>* LaneMemory::counts(int member, std::uint64_t sequence) const {
  auto* first = reinterpret_cast<std::atomic<std::int64_t>*>(base_ + slots_bytes(members_, depth_) +
                                                             words_bytes(members_, depth_));
  return first + (position(sequence) * members_ + member) * 2 * members_;
}

std::size_t GroupBlock::bytes(int members) {
  std::size_t messages = LaneMemory::bytes(2, message_depth, false) * members * members;
  return collectives_offset(members) + LaneMemory::bytes(members, collective_depth, true) +
         messages;
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
  return {base_ + collectives_offset(members_), members_, collective_depth};
}

LaneMemory GroupBlock::messages(int source, int destination) const {
  std::size_t before =
      LaneMemory::bytes(2, message_depth, false) * (source * members_ + destination);
  std::size_t first =
      collectives_offset(members_) + LaneMemory::bytes(members_, collective_depth, true);
  return {base_ + first + before, 2, message_depth};
}

}  // namespace lockstep::shm
