// The names of a group and its ranks in messages. A rank of a subgroup is also named by its world
// rank if the two differ.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace lockstep {

class GroupNames {
 public:
  // `world_ranks`: the world ranks of the group's ranks; empty if they are the same.
  GroupNames(std::string name = "world", std::vector<int> world_ranks = {});

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int world_rank(int rank) const;
  // Returns the names of a subgroup of these ranks, in their order.
  [[nodiscard]] GroupNames part(std::span<const int> ranks, std::string name) const;

  // "rank 1", "rank 1 (rank 3 of the world)"
  [[nodiscard]] std::string rank(int rank) const;
  // "rank 1's", "rank 1's (rank 3 of the world)"
  [[nodiscard]] std::string ranks_own(int rank) const;
  // "ranks 0, 2", "ranks 0-2 (ranks 4-6 of the world)"
  [[nodiscard]] std::string ranks(std::span<const int> ranks) const;
  // Returns the end of a sentence: " [group world/split#1/0]", or nothing for the world.
  [[nodiscard]] std::string ending() const;

 private:
  // " (rank 3 of the world)", or nothing.
  [[nodiscard]] std::string in_world(std::span<const int> ranks) const;

  std::string name_;
  std::vector<int> world_ranks_;
};

}  // namespace lockstep
