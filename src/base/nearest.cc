#include "base/nearest.h"
#include "base/format.h"

#include <algorithm>
#include <vector>

namespace lockstep {

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: two letters back (for swaps), one letter back, and the one being made.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      int replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::optional<std::string_view> nearest(std::string_view name,
                                        std::span<const std::string_view> known) {
  std::optional<std::string_view> best;
  int best_distance = 0;
  for (std::string_view candidate : known) {
    int allowed =
        static_cast<int>(std::max<std::size_t>(1, std::max(name.size(), candidate.size()) / 3));
    int distance = edit_distance(name, candidate);
    if (distance > allowed || (best && distance >= best_distance)) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string unknown_name(std::string_view kind, std::string_view name,
                         std::span<const std::string_view> known) {
  if (auto meant = nearest(name, known))
    return formatted("unknown {} '{}'; did you mean '{}'?", kind, name, *meant);
  std::string list;
  for (std::string_view candidate : known)
    list += formatted("{}{}", list.empty() ? "" : ", ", candidate);
  return formatted("unknown {} '{}'; known: {}", kind, name, list.empty() ? "none" : list);
}

}  // namespace lockstep
