#include "comm/call/dtype.h"

#include <array>

namespace lockstep {

std::string_view name_of(DType dtype) {
  constexpr std::array<std::string_view, dtypes> names{
      "float64",       "float32",       "float16",       "bfloat16",        "int64",
      "int32",         "int16",         "int8",          "uint8",           "bool",
      "complex64",     "complex128",    "uint16",        "uint32",          "uint64",
      "complex32",     "float8_e5m2",   "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz",
      "1-byte values", "2-byte values", "4-byte values", "8-byte values",   "16-byte values"};
  return names.at(static_cast<std::size_t>(dtype));
}

}  // namespace lockstep
