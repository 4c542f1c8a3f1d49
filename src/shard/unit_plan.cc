#include <lockstep/shard/unit_plan.h>

#include <lockstep/base/check.h>
#include <lockstep/base/nearest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace lockstep::shard {
namespace {

// '*' stands for any letters; neither has a dot.
bool names_part(std::string_view pattern, std::string_view part) {
  if (pattern.empty()) return part.empty();
  if (pattern.front() != '*')
    return !part.empty() && pattern.front() == part.front() &&
           names_part(pattern.substr(1), part.substr(1));
  for (std::size_t taken = 0; taken <= part.size(); ++taken)
    if (names_part(pattern.substr(1), part.substr(taken))) return true;
  return false;
}

// "a.b.c": a, a.b, a.b.c, the deepest first.
std::vector<std::string_view> paths_of(std::string_view name) {
  std::vector<std::string_view> paths;
  for (std::size_t end = name.size(); end != std::string_view::npos;
       end = end == 0 ? std::string_view::npos : name.rfind('.', end - 1))
    paths.push_back(name.substr(0, end));
  return paths;
}

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

bool same_kind(const UnitItem& a, const UnitItem& b) {
  return a.dtype == b.dtype && a.device == b.device && a.trains == b.trains;
}

}  // namespace

void check_patterns(std::string_view kind, std::span<const std::string> patterns,
                    std::span<const std::string> names) {
  std::set<std::string_view> paths;
  for (const std::string& name : names)
    for (std::string_view path : paths_of(name)) paths.insert(path);
  for (const std::string& pattern : patterns) {
    auto named = [&](std::string_view path) { return names_path(pattern, path); };
    if (std::ranges::any_of(paths, named)) continue;
    constexpr std::size_t most_paths = 12;
    std::vector<std::string_view> known(paths.begin(), paths.end());
    std::ranges::stable_sort(known, {}, [](auto path) { return std::ranges::count(path, '.'); });
    if (known.size() > most_paths) known.resize(most_paths);
    throw InvalidArgument(unknown_name(kind, pattern, known));
  }
}

bool names_around(std::string_view pattern, std::string_view name) {
  return std::ranges::any_of(paths_of(name),
                             [&](std::string_view path) { return names_path(pattern, path); });
}

bool names_path(std::string_view pattern, std::string_view path) {
  std::size_t end_of_pattern = pattern.find('.');
  std::size_t end_of_path = path.find('.');
  if (!names_part(pattern.substr(0, end_of_pattern), path.substr(0, end_of_path))) return false;
  bool last = end_of_pattern == std::string_view::npos;
  if (last || end_of_path == std::string_view::npos)
    return last && end_of_path == std::string_view::npos;
  return names_path(pattern.substr(end_of_pattern + 1), path.substr(end_of_path + 1));
}

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
      if (same_kind(items[first], items[i])) unit = &units[u];
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
  std::int64_t element =
      tensors.empty() ? 1 : static_cast<std::int64_t>(c10::elementSize(tensors.front().dtype));
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

}  // namespace lockstep::shard
