#include "comm/backends/hierarchical/layout.h"

#include <algorithm>
#include <map>

namespace lockstep::hierarchical {

int HostLayout::size() const {
  std::size_t all = 0;
  for (const auto& ranks : hosts) all += ranks.size();
  return static_cast<int>(all);
}

bool HostLayout::is_even() const {
  return std::ranges::all_of(hosts,
                             [&](const auto& ranks) { return ranks.size() == local().size(); });
}

std::vector<int> HostLayout::across() const {
  std::vector<int> ranks;
  auto at = is_even() ? static_cast<std::size_t>(place) : 0;
  for (const auto& local : hosts) ranks.push_back(local[at]);
  return ranks;
}

int HostLayout::host_of(int rank) const {
  auto found = std::ranges::find_if(
      hosts, [&](const auto& ranks) { return std::ranges::find(ranks, rank) != ranks.end(); });
  return static_cast<int>(found - hosts.begin());
}

int HostLayout::place_of(int rank) const {
  const auto& ranks = hosts[host_of(rank)];
  return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

HostLayout make_layout(std::span<const std::string> names, int rank) {
  HostLayout layout;
  std::map<std::string, std::size_t> numbers;
  for (std::size_t other = 0; other < names.size(); ++other) {
    auto [entry, is_new] = numbers.emplace(names[other], layout.hosts.size());
    if (is_new) layout.hosts.emplace_back();
    layout.hosts[entry->second].push_back(static_cast<int>(other));
  }
  layout.host = layout.host_of(rank);
  layout.place = layout.place_of(rank);
  return layout;
}

}  // namespace lockstep::hierarchical
