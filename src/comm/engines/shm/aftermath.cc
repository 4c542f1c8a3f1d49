// Aftermath: what a process does about a group that has died before it tells its callers, so that
// they may use their tensors again.
//
// A peer that executes a segment when the group dies finishes it, and writes into tensors of this
// rank. So each rank that learns of the failure stops, waits until no process executes anything of
// the group, and only then throws. A process that is stopped itself may finish its segment at any
// later time: what it writes to gets fresh memory, and the memory that it had is never used again.
#include "comm/diagnose/report.h"
#include "comm/engines/shm/group.h"

#include <lockstep/base/deadline.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace lockstep::shm {
namespace {

// A segment takes less than a millisecond; a process that shares its cores may take its time.
constexpr auto patience_with_writers = std::chrono::milliseconds(300);
constexpr auto look_at_writers_again = std::chrono::microseconds(50);

struct Writer {
  int number;  // in the group
  std::uint64_t word;
};

// Marks of the group's operations, of processes that have not ended.
std::vector<Writer> writers_in(const SharedGroup& group, const std::vector<Channel*>& channels) {
  std::vector<Writer> found;
  for (int number = 0; number < group.size(); ++number) {
    const int world_rank = group.world_rank(number);
    if (!group.presence().is_alive(world_rank)) continue;
    visit_marks(group.peers(), world_rank, [&](std::uint64_t word) {
      bool is_ours = std::ranges::any_of(
          channels, [word](const Channel* channel) { return is_of_channel(word, channel->key()); });
      if (is_ours) found.push_back({number, word});
    });
  }
  return found;
}

}  // namespace

std::string Group::settle() {
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
      operation.leak();
      if (!problem.empty())
        text += diagnose::words_of_writer(writer->number, channel->own_call(operation.sequence()),
                                          problem, names());
    });
  }
  return text;
}

std::string Group::renew(Operation& operation) {
  Buffer exposed = operation.exposed();
  if (exposed.bytes == 0) return {};
  if (operation.staged().is_shared(shared_.peers())) return "it is memory that ranks share";
  KeepAlive& kept = operation.kept_output();
  Buffer memory = kept.memory();
  if (memory.bytes == 0) return "its memory is the caller's own";
  if (!overlap(memory, exposed)) return {};  // its owner has given it other memory
  if (progress_.is_used_besides(shared_, memory)) return "other groups use its memory, too";
  return kept.renew() ? std::string() : "there is no other memory";
}

}  // namespace lockstep::shm
