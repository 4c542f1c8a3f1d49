#include "comm/engines/shm/aftermath.h"

#include <lockstep/base/deadline.h>

#include "base/format.h"
#include "base/text.h"
#include "comm/engines/shm/endpoint.h"
#include "comm/engines/shm/group.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace lockstep::shm {
namespace {

// A segment takes less than a millisecond; a process that shares its cores may take its time.
constexpr auto patience_with_writers = std::chrono::milliseconds(300);
constexpr auto look_at_writers_again = std::chrono::microseconds(50);

}  // namespace

std::vector<Aftermath::Writer> Aftermath::writers() const {
  std::vector<Writer> found;
  for (int number = 0; number < group_.size(); ++number) {
    int world_rank = group_.members()[static_cast<std::size_t>(number)];
    if (!endpoint_.is_alive(world_rank)) continue;
    endpoint_.marks().visit(world_rank, [&](std::uint64_t word) {
      bool is_ours = std::ranges::any_of(group_.channels(), [word](const Channel* channel) {
        return is_of_channel(word, channel->key());
      });
      if (is_ours) found.push_back({number, word});
    });
  }
  return found;
}

std::vector<Aftermath::Writer> Aftermath::wait_for_writers() const {
  auto deadline = Deadline::after(patience_with_writers);
  for (;;) {
    auto found = writers();
    if (found.empty() || deadline.passed()) return found;
    std::this_thread::sleep_for(look_at_writers_again);
  }
}

std::string Aftermath::settle() {
  endpoint_.stop(group_);
  auto left = wait_for_writers();
  std::string text;
  for (Channel* channel : group_.channels()) {
    channel->end_unfinished([&](Operation& operation) {
      auto word = execution_word(channel->key(), operation.sequence());
      auto writer = std::ranges::find(left, word, &Writer::word);
      if (writer == left.end()) return operation.release();
      auto problem = renew(operation);
      operation.leak();
      if (problem.empty()) return;
      text += formatted("; rank {} is in {} and may still write to its output: {}", writer->number,
                        describe(channel->own_call(operation.sequence())), problem);
    });
  }
  return text;
}

std::string Aftermath::renew(Operation& operation) const {
  Buffer exposed = operation.exposed();
  if (exposed.bytes == 0) return {};
  if (operation.staged().is_shared(endpoint_.peers())) return "it is memory that ranks share";
  KeepAlive& kept = operation.kept_output();
  Buffer memory = kept.memory();
  if (memory.bytes == 0) return "its memory is the caller's own";
  if (!overlap(memory, exposed)) return {};  // its owner has given it other memory
  if (endpoint_.is_used_besides(group_, memory)) return "other groups use its memory, too";
  return kept.renew() ? std::string() : "there is no other memory";
}

void Endpoint::stop(Group& group) {
  std::lock_guard lock(mutex_);
  group.stop();
  for (Channel* channel : group.channels()) std::erase(busy_, channel);
  busy_channels_.store(busy_.size(), std::memory_order_relaxed);
}

bool Endpoint::is_alive(int world_rank) {
  if (has_gone(world_rank)) return false;
  std::lock_guard lock(mutex_);
  return lost_[static_cast<std::size_t>(world_rank)] == 0;
}

bool Endpoint::is_used_besides(const Group& group, Buffer buffer) {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(groups_, [&](const auto& other) {
    return other.get() != &group &&
           std::ranges::any_of(other->channels(),
                               [&](const Channel* channel) { return channel->uses(buffer); });
  });
}

}  // namespace lockstep::shm
