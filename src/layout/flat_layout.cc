#include "layout/flat_layout.h"

#include "base/check.h"

#include <lockstep/layout/name_pattern.h>
#include <lockstep/layout/tensor_slice.h>

#include <algorithm>

namespace lockstep::layout {
namespace {

std::int64_t count_elements(const TensorSpec& tensor) {
  for (std::int64_t size : tensor.sizes)
    check(size >= 0, "flat layout: {} has a negative size, {}", tensor.name, size);
  return numel_of(tensor.sizes);
}

}  // namespace

FlatLayout::FlatLayout(std::span<const TensorSpec> tensors, FlatOptions options) {
  if (!tensors.empty()) dtype_ = tensors.front().dtype;
  std::int64_t element = dtype_.bytes;
  check(options.alignment >= 1 &&
            (options.alignment % element == 0 || element % options.alignment == 0),
        "flat layout: alignment must be a multiple of an element's {} bytes, found {}", element,
        options.alignment);
  for (const TensorSpec& tensor : tensors)
    place(tensor, std::max<std::int64_t>(1, options.alignment / element));
  numel_ = round_up(numel_, options.multiple);
}

void FlatLayout::place(const TensorSpec& tensor, std::int64_t alignment) {
  check(tensor.dtype == dtype_, "flat layout: {} is {}, but {} is {}", tensor.name,
        tensor.dtype.name, entries_.empty() ? "" : entries_.front().name, dtype_.name);
  FlatEntry entry{tensor.name, tensor.sizes, count_elements(tensor), 0, false};
  auto same = std::find(identities_.begin(), identities_.end(), tensor.identity);
  if (tensor.identity != nullptr && same != identities_.end()) {
    const FlatEntry& first = entries_[static_cast<std::size_t>(same - identities_.begin())];
    check(first.sizes == tensor.sizes, "flat layout: {} is tied to {} but has other sizes",
          tensor.name, first.name);
    entry.offset = first.offset;
    entry.tied = true;
  } else {
    entry.offset = tensor.follows ? numel_ : round_up(numel_, alignment);
    numel_ = entry.offset + entry.numel;
    used_ += entry.numel;
  }
  identities_.push_back(tensor.identity);
  entries_.push_back(std::move(entry));
}

std::int64_t FlatLayout::bytes() const { return numel_ * dtype_.bytes; }

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
  check(world >= 1, "unit: expected a world of at least one rank, found {}", world);
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

namespace {

struct OpenBucket {
  std::string kind;
  std::vector<int> items = {};
  std::int64_t bytes = 0;
  std::size_t last = 0;  // position of its last item in the order
};

void check_permutation(std::span<const int> order, std::size_t count) {
  std::vector<bool> seen(count, false);
  check(order.size() == count,
        "bucket plan: the order must name every parameter, {} in all, found {}", count,
        order.size());
  for (int item : order) {
    bool known = item >= 0 && item < static_cast<int>(count);
    check(known && !seen[static_cast<std::size_t>(item)],
          "bucket plan: parameter {} is unknown or ordered twice", item);
    seen[static_cast<std::size_t>(item)] = true;
  }
}

OpenBucket& bucket_for(const PlanItem& item, std::vector<OpenBucket>& open) {
  for (OpenBucket& bucket : open)
    if (bucket.kind == item.kind) return bucket;
  return open.emplace_back(OpenBucket{item.kind});
}

}  // namespace

std::vector<int> reverse_order(int count) { return complete_order({}, count); }

BucketPlan plan_buckets(std::span<const PlanItem> items, std::span<const int> order,
                        PlanOptions options) {
  check_permutation(order, items.size());
  check(options.first_bucket_bytes >= 1 && options.bucket_bytes >= 1 && options.alone_bytes >= 1,
        "bucket plan: limits must be positive, found {}, {} and {}", options.first_bucket_bytes,
        options.bucket_bytes, options.alone_bytes);
  std::vector<OpenBucket> open;
  std::vector<OpenBucket> closed;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const PlanItem& item = items[static_cast<std::size_t>(order[place])];
    if (item.bytes >= options.alone_bytes) {
      closed.push_back({item.kind, {order[place]}, item.bytes, place});
      continue;
    }
    OpenBucket& bucket = bucket_for(item, open);
    bucket.items.push_back(order[place]);
    bucket.bytes += item.bytes;
    bucket.last = place;
    if (bucket.bytes < (closed.empty() ? options.first_bucket_bytes : options.bucket_bytes))
      continue;
    const auto full = open.begin() + (&bucket - open.data());
    closed.push_back(std::move(*full));
    open.erase(full);
  }
  std::move(open.begin(), open.end(), std::back_inserter(closed));
  std::sort(closed.begin(), closed.end(),
            [](const OpenBucket& a, const OpenBucket& b) { return a.last < b.last; });
  BucketPlan plan;
  for (OpenBucket& bucket : closed) plan.push_back(std::move(bucket.items));
  return plan;
}

std::vector<int> complete_order(std::span<const int> observed, int count) {
  std::vector<int> order(observed.begin(), observed.end());
  for (int item = count - 1; item >= 0; --item)
    if (std::find(observed.begin(), observed.end(), item) == observed.end()) order.push_back(item);
  return order;
}

}  // namespace lockstep::layout
