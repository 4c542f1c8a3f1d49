// The parts of all ranks, on every rank.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/layout/tensor_slice.h>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace lockstep::parallel {

// A part without its values.
struct PartDescription {
  std::string name;
  c10::ScalarType dtype{};
  layout::TensorSlice slice;
  bool is_replaced = false;  // by the copy of a lower rank that has the same elements
  std::vector<std::string> aliases = {};
  c10::DeviceType device = c10::kCPU;
  bool operator==(const PartDescription&) const = default;
};

// Collective. Returns every rank's list, in rank order.
[[nodiscard]] std::vector<std::vector<PartDescription>> exchange_parts(
    Group& group, std::span<const PartDescription> own);

// Collective. Returns the names that any rank has.
[[nodiscard]] std::set<std::string> names_of_all(Group& group, const std::set<std::string>& own);

}  // namespace lockstep::parallel
