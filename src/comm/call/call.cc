#include <lockstep/comm/call.h>

namespace lockstep {

std::string_view name_of(Op op) {
  constexpr std::array<std::string_view, 8> names{"sum", "average", "product", "min",
                                                  "max", "band",    "bor",     "bxor"};
  return names.at(static_cast<std::size_t>(op));
}

std::string_view name_of(Collective collective) {
  constexpr std::array<std::string_view, 11> names{
      "all_reduce", "reduce",  "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather",
      "scatter",    "barrier", "send",      "recv"};
  return names.at(static_cast<std::size_t>(collective));
}

std::string_view name_of(DType dtype) {
  constexpr std::array<std::string_view, dtype_count> names{
      "float64",       "float32",       "float16",       "bfloat16",        "int64",
      "int32",         "int16",         "int8",          "uint8",           "bool",
      "complex64",     "complex128",    "uint16",        "uint32",          "uint64",
      "complex32",     "float8_e5m2",   "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz",
      "1-byte values", "2-byte values", "4-byte values", "8-byte values",   "16-byte values"};
  return names.at(static_cast<std::size_t>(dtype));
}

}  // namespace lockstep
