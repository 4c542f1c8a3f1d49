// Which ranks share a host, and who talks to whom across hosts: pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::hierarchical {

struct Layout {
  std::vector<std::vector<int>> hosts;  // the ranks of each, in order; hosts by their first rank
  int host = 0;                         // of this rank
  int place = 0;                        // of this rank among those of its host

  [[nodiscard]] int size() const;
  [[nodiscard]] const std::vector<int>& local() const { return hosts[host]; }
  // All hosts have equally many ranks.
  [[nodiscard]] bool is_even() const;
  // The ranks that talk across hosts with this one: those with its place on each host where hosts
  // are even, else the first of each host, this rank among them or not.
  [[nodiscard]] std::vector<int> across() const;
  [[nodiscard]] bool is_across() const { return is_even() || place == 0; }
  [[nodiscard]] int host_of(int rank) const;
  [[nodiscard]] int place_of(int rank) const;
};

// names[r] is the host of rank r.
[[nodiscard]] Layout make_layout(std::span<const std::string> names, int rank);

// Where each rank's part begins and how long it is, when the parts lie one behind the other in this
// order of ranks. By rank.
struct Placed {
  std::size_t begin = 0;
  std::size_t count = 0;
};
[[nodiscard]] std::vector<Placed> placed(std::span<const int> order,
                                         std::span<const std::int64_t> counts);

}  // namespace lockstep::hierarchical
