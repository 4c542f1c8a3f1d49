// Which parameters are gathered and released together, and which part of them each rank keeps.
// Pure: the same on every rank that passes the same items and patterns.
//
// A unit is one flat storage, so it has one dtype, one device, and either trains or does not: where
// a module has several kinds, each kind is a unit of its own, named "blocks.0", "blocks.0 (2)", ...
#pragma once

#include <lockstep/shard/flat_layout.h>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::shard {

// What the plan needs to know of a parameter.
struct UnitItem {
  std::string name;  // "blocks.0.fc.weight"
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::kCPU;
  bool trains = true;                     // requires a gradient
  std::vector<std::string> aliases = {};  // its other names, where a weight is tied
};

struct PlannedUnit {
  std::string name;        // the module's path: "blocks.0"; "rest" for what no pattern names
  int pattern = -1;        // the pattern that made it; -1 for the rest
  std::vector<int> items;  // in the order given
  bool operator==(const PlannedUnit&) const = default;
};

// Whether `pattern` names `path`: part by part between dots, '*' standing for any letters of one
// part ("blocks.*" names blocks.0, and not blocks.0.fc).
[[nodiscard]] bool names_path(std::string_view pattern, std::string_view path);

// Whether `pattern` names the tensor `name`, or a module around it.
[[nodiscard]] bool names_around(std::string_view pattern, std::string_view name);

// InvalidArgument for the first pattern that names none of these tensors and no module around one:
// it says what was probably meant. `kind`: of pattern, for the message.
void check_patterns(std::string_view kind, std::span<const std::string> patterns,
                    std::span<const std::string> names);

// A parameter belongs to the deepest of the modules around it (or to itself) that a pattern names,
// by the first pattern that does; a tied one by the first of its names for which there is one.
// Every item comes once; units come in the order of their first items. InvalidArgument for a
// pattern that names nothing: it says what was probably meant.
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

}  // namespace lockstep::shard
