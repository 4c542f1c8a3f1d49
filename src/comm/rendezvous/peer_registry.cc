#include "comm/rendezvous/peer_registry.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/text.h"
#include "comm/rendezvous/meeting.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace lockstep::rendezvous {
namespace {

using std::chrono::milliseconds;

// Longest pause between polls of the store, and between checks of the peers' processes.
constexpr Duration longest_pause = milliseconds(10);
constexpr Duration between_looks = milliseconds(100);

}  // namespace

PeerRegistry::PeerRegistry(std::shared_ptr<Store> store, std::string group, int rank, int size,
                           std::string_view words, Duration join_timeout)
    : store_(std::move(store)), group_(std::move(group)), rank_(rank) {
  auto texts = allgather_text(*store_,
                              {.prefix = key("rank/"),
                               .rank = rank,
                               .size = size,
                               .purpose = formatted("to join group {}", group_)},
                              formatted("{}\n{}", sys::process_identity(), words), join_timeout);
  for (int other = 0; other < size; ++other) {
    const auto& text = texts[static_cast<std::size_t>(other)];
    auto end = std::min(text.find('\n'), text.size());
    processes_.watch(other, text.substr(0, end));
    words_.push_back(end < text.size() ? text.substr(end + 1) : "");
  }
}

std::string PeerRegistry::key(std::string_view name) const {
  return formatted("lockstep/registry/{}/{}", group_, name);
}

void PeerRegistry::meet(const std::string& place, int count, const std::atomic<bool>& stop,
                        Duration timeout) const {
  const auto deadline = Deadline::after(timeout);
  const auto at = key("at/" + place);
  if (barrier_arrive(*store_, at, count)) return;
  Duration pause = milliseconds(1);
  auto look = Deadline::after(between_looks);
  while (!barrier_done(*store_, at)) {
    if (stop) throw Aborted(formatted("group {}: ended while its ranks were connecting", group_));
    if (deadline.passed())
      throw Timeout(formatted("group {}: timed out after {} waiting for {} to connect ({})", group_,
                              format_duration(timeout), counted(count, "rank"), place));
    if (look.passed()) {
      check_processes();
      look = Deadline::after(between_looks);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, longest_pause);
  }
}

void PeerRegistry::check_processes() const {
  if (auto ended = processes_.ended(); !ended.empty())
    throw PeerLost(formatted("the process {} of rank {} has ended", processes_.pid(ended.front()),
                             ended.front()));
}

std::string PeerRegistry::key_of_leaving(int rank) const { return key(formatted("left/{}", rank)); }

void PeerRegistry::leave() const { store_->set(key_of_leaving(rank_), "1"); }

bool PeerRegistry::have_all_left() const {
  for (int rank = 0; rank < static_cast<int>(words_.size()); ++rank)
    if (!store_->try_get(key_of_leaving(rank))) return false;
  return true;
}

void PeerRegistry::await_the_others(Duration timeout) const {
  const auto deadline = Deadline::after(timeout);
  for (int rank = 0; rank < static_cast<int>(words_.size()); ++rank) {
    const auto name = key_of_leaving(rank);
    while (!deadline.passed() && !store_->try_get(name)) {
      if (processes_.has_ended(rank)) break;
      std::this_thread::sleep_for(longest_pause);
    }
  }
}

}  // namespace lockstep::rendezvous
