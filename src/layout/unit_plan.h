// Which parameters are gathered and released together, and which part of them each rank keeps.
// Pure: the same on every rank that passes the same items and patterns.
//
// A unit is one flat storage, so it has one kind of parameters (dtype, device, whether they train):
// where a module has several, each kind is a unit of its own, named "blocks.0", "blocks.0 (2)", ...
#pragma once

#include "layout/flat_layout.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::layout {

// What the plan needs to know of a parameter.
struct UnitItem {
  std::string name;                       // "blocks.0.fc.weight"
  std::string kind = "";                  // what all parameters of a unit have in common
  std::vector<std::string> aliases = {};  // its other names, where a weight is tied
};

struct PlannedUnit {
  std::string name;        // the module's path: "blocks.0"; "rest" for what no pattern names
  int pattern = -1;        // the pattern that made it; -1 for the rest
  std::vector<int> items;  // in the order given
  bool operator==(const PlannedUnit&) const = default;
};

// A parameter belongs to the deepest of the modules around it (or to itself) that a pattern names,
// by the first pattern that does (lockstep/layout/name_pattern.h); a tied one by the first of its
// names for which there is one. Every item comes once; units come in the order of their first
// items. InvalidArgument for a pattern that names nothing: it says what was probably meant.
[[nodiscard]] std::vector<PlannedUnit> plan_units(std::span<const UnitItem> items,
                                                  std::span<const std::string> patterns);

// The layout of a unit: tensors begin at multiples of `alignment` bytes, and the whole is padded so
// that the shards of `world` ranks are equally long and begin at such multiples too.
[[nodiscard]] FlatLayout unit_layout(std::span<const TensorSpec> tensors, int world,
                                     std::int64_t alignment = 64);

// What rank `rank` keeps of each distinct tensor, in the layout's order: side by side in its shard
// but for the padding between tensors, and empty where another rank has all of it. Offsets count
// from the shard's begin.
[[nodiscard]] std::vector<FlatSlice> owned_slices(const FlatLayout& layout, int world, int rank);

}  // namespace lockstep::layout
