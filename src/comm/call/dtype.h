// What an element is, without LibTorch: a kind that can be summed, or so many bytes that can only
// be moved.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class DType : std::uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  int64,
  int32,
  int16,
  int8,
  uint8,
  boolean,
  complex64,
  complex128,
  uint16,  // this and all that follow are moved, never combined
  uint32,
  uint64,
  complex32,
  float8_e5m2,
  float8_e4m3fn,
  float8_e5m2fnuz,
  float8_e4m3fnuz,
  opaque1,
  opaque2,
  opaque4,
  opaque8,
  opaque16
};
inline constexpr std::size_t dtypes = 25;

[[nodiscard]] constexpr std::size_t bytes_of(DType dtype) {
  constexpr std::array<std::size_t, dtypes> bytes{8, 4, 2, 2, 8, 4, 2, 1, 1, 1, 8, 16, 2,
                                                  4, 8, 4, 1, 1, 1, 1, 1, 2, 4, 8, 16};
  return bytes.at(static_cast<std::size_t>(dtype));
}
// All of their sizes are powers of two, so no division is needed.
[[nodiscard]] constexpr std::int64_t elements_in(std::size_t bytes, DType dtype) {
  return static_cast<std::int64_t>(bytes >> std::countr_zero(bytes_of(dtype)));
}
[[nodiscard]] std::string_view name_of(DType dtype);
[[nodiscard]] constexpr bool is_integral(DType dtype) {
  return dtype >= DType::int64 && dtype <= DType::boolean;
}
[[nodiscard]] constexpr bool is_complex(DType dtype) {
  return dtype == DType::complex64 || dtype == DType::complex128;
}
[[nodiscard]] constexpr bool is_opaque(DType dtype) { return dtype >= DType::uint16; }

}  // namespace lockstep
