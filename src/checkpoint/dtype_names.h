// The dtype names of the safetensors format.
#pragma once

#include "base/format.h"

#include <lockstep/base/error.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace lockstep::checkpoint {

struct DtypeName {
  std::string_view name;
  c10::ScalarType dtype;
};

inline constexpr std::array<DtypeName, 17> dtype_names{{
    {"BOOL", c10::ScalarType::Bool},
    {"U8", c10::ScalarType::Byte},
    {"I8", c10::ScalarType::Char},
    {"I16", c10::ScalarType::Short},
    {"U16", c10::ScalarType::UInt16},
    {"I32", c10::ScalarType::Int},
    {"U32", c10::ScalarType::UInt32},
    {"I64", c10::ScalarType::Long},
    {"U64", c10::ScalarType::UInt64},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"F8_E8M0", c10::ScalarType::Float8_e8m0fnu},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"F32", c10::ScalarType::Float},
    {"F64", c10::ScalarType::Double},
    {"C64", c10::ScalarType::ComplexFloat},
}};

// Throws InvalidArgument for a dtype without a name.
[[nodiscard]] inline std::string_view name_of(c10::ScalarType dtype) {
  auto row = std::ranges::find(dtype_names, dtype, &DtypeName::dtype);
  if (row == dtype_names.end())
    throw InvalidArgument(formatted("safetensors has no name for dtype {}", c10::toString(dtype)));
  return row->name;
}

[[nodiscard]] inline std::optional<c10::ScalarType> dtype_of(std::string_view name) {
  auto row = std::ranges::find(dtype_names, name, &DtypeName::name);
  return row == dtype_names.end() ? std::nullopt : std::optional(row->dtype);
}

}  // namespace lockstep::checkpoint
