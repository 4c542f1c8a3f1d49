// How ranks of a local group come and go.
#include "comm/engines/local/world.h"

#include <algorithm>

namespace lockstep::local {

std::shared_ptr<World> World::child(int rank, std::span<const int> ranks, std::string_view name) {
  Lock lock(mutex_);
  auto entry = children_.find(name);
  if (entry == children_.end()) {
    Child fresh{std::make_shared<World>(static_cast<int>(ranks.size()),
                                        names_.part(ranks, std::string(name))),
                {ranks.begin(), ranks.end()},
                std::vector<bool>(ranks.size())};
    entry = children_.emplace(std::string(name), std::move(fresh)).first;
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      if (!members_[ranks[place]].left) continue;
      entry->second.taken[place] = true;
      entry->second.world->leave(static_cast<int>(place), members_[ranks[place]].by_exception);
    }
  }
  auto& child = entry->second;
  child.taken[std::ranges::find(child.ranks, rank) - child.ranks.begin()] = true;
  auto world = child.world;
  if (std::ranges::all_of(child.taken, [](bool taken) { return taken; })) children_.erase(entry);
  return world;
}

at::Tensor World::node_shared(int rank, const std::function<at::Tensor()>& make) {
  Lock lock(mutex_);
  auto number = ++members_[rank].node_shared;
  auto& shared = node_shared_[number];
  if (!shared.tensor.defined()) shared.tensor = make();
  auto mine = shared.tensor.detach();
  if (shared.tensor.requires_grad()) mine.requires_grad_();
  if (++shared.taken == size_) node_shared_.erase(number);
  return mine;
}

void World::leave(int rank, bool by_exception) {
  Lock lock(mutex_);
  members_[rank].left = true;
  members_[rank].by_exception = by_exception;
  for (auto& [name, child] : children_) {
    auto place = std::ranges::find(child.ranks, rank) - child.ranks.begin();
    if (place == std::ssize(child.ranks) || child.taken[place]) continue;
    child.taken[place] = true;
    child.world->leave(static_cast<int>(place), by_exception);
  }
  for (auto entry = pending_.begin(); !failure_ && entry != pending_.end(); ++entry) {
    auto id = entry->first;
    auto [source, destination] = id.channel;
    if (!id.channel.is_collective() && source != rank && destination != rank) continue;
    check_presence(id, entry->second);
    if (failure_) break;
  }
}

}  // namespace lockstep::local
