// Computes which ranks share a host and which communicate across hosts. Pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::hierarchical {

struct HostLayout {
  std::vector<std::vector<int>> hosts;  // the ranks of each host, sorted; hosts by first rank
  int host = 0;                         // this rank's host
  int place = 0;                        // this rank's index among the ranks of its host

  [[nodiscard]] int size() const;
  [[nodiscard]] const std::vector<int>& local() const { return hosts[host]; }
  // Returns true if all hosts have the same number of ranks.
  [[nodiscard]] bool is_even() const;
  // Returns the ranks that communicate across hosts. If hosts are even: the ranks with this rank's
  // place on each host; else the first rank of each host, which may exclude this rank.
  [[nodiscard]] std::vector<int> across() const;
  [[nodiscard]] bool is_across() const { return is_even() || place == 0; }
  [[nodiscard]] int host_of(int rank) const;
  [[nodiscard]] int place_of(int rank) const;
};

// names[r] is the host of rank r.
[[nodiscard]] HostLayout make_layout(std::span<const std::string> names, int rank);

}  // namespace lockstep::hierarchical
