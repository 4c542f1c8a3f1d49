#include "layout/unit_plan.h"

#include "base/check.h"

#include <lockstep/layout/name_pattern.h>

#include <algorithm>

namespace lockstep::layout {
namespace {

struct Found {
  std::string_view path = "rest";
  int pattern = -1;
};

Found unit_of(std::string_view name, std::span<const std::string> patterns) {
  for (std::string_view path : paths_of(name))
    for (std::size_t i = 0; i < patterns.size(); ++i)
      if (names_path(patterns[i], path)) return {path, static_cast<int>(i)};
  return {};
}

Found unit_of(const UnitItem& item, std::span<const std::string> patterns) {
  Found found = unit_of(item.name, patterns);
  for (const std::string& alias : item.aliases)
    if (found.pattern < 0) found = unit_of(alias, patterns);
  return found;
}

}  // namespace

std::vector<PlannedUnit> plan_units(std::span<const UnitItem> items,
                                    std::span<const std::string> patterns) {
  std::vector<std::string> names;
  for (const UnitItem& item : items) {
    names.push_back(item.name);
    names.insert(names.end(), item.aliases.begin(), item.aliases.end());
  }
  check_patterns("unit pattern", patterns, names);
  std::vector<PlannedUnit> units;
  std::vector<std::string_view> paths;  // of units
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto [path, pattern] = unit_of(items[i], patterns);
    int kinds = 0;
    PlannedUnit* unit = nullptr;
    for (std::size_t u = 0; u < units.size() && unit == nullptr; ++u) {
      if (paths[u] != path) continue;
      ++kinds;
      auto first = static_cast<std::size_t>(units[u].items.front());
      if (items[first].kind == items[i].kind) unit = &units[u];
    }
    if (unit == nullptr) {
      std::string name = kinds == 0 ? std::string(path) : formatted("{} ({})", path, kinds + 1);
      unit = &units.emplace_back(PlannedUnit{std::move(name), pattern, {}});
      paths.push_back(path);
    }
    unit->items.push_back(static_cast<int>(i));
  }
  return units;
}

FlatLayout unit_layout(std::span<const TensorSpec> tensors, int world, std::int64_t alignment) {
  check(world >= 1, "unit: the world must have a rank, found {}", world);
  std::int64_t element = tensors.empty() ? 1 : tensors.front().dtype.bytes;
  FlatLayout tight(tensors, {.alignment = alignment});
  // A unit without elements has shards without elements.
  std::int64_t multiple =
      tight.used() == 0 ? 1 : world * std::max<std::int64_t>(1, alignment / element);
  return FlatLayout(tensors, {.alignment = alignment, .multiple = multiple});
}

std::vector<FlatSlice> owned_slices(const FlatLayout& layout, int world, int rank) {
  Range owned = shard_range(layout.numel(), world, rank);
  std::vector<FlatSlice> slices;
  for (std::size_t i = 0; i < layout.entries().size(); ++i) {
    const FlatEntry& entry = layout.entries()[i];
    if (entry.tied) continue;
    Range all{entry.offset, entry.offset + entry.numel};
    Range part{std::clamp(all.begin, owned.begin, owned.end),
               std::clamp(all.end, owned.begin, owned.end)};
    Range of_tensor{std::clamp(part.begin - entry.offset, std::int64_t{0}, entry.numel),
                    std::clamp(part.end - entry.offset, std::int64_t{0}, entry.numel)};
    slices.push_back({static_cast<int>(i), of_tensor, part.begin - owned.begin});
  }
  return slices;
}

}  // namespace lockstep::layout
