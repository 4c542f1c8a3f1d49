// Numbers between float32 and what takes less memory: 16-bit floats, and blocks of 8-bit codes.
#pragma once

#include <cstdint>

namespace lockstep::optim {

// IEEE half and bfloat16, as bits.
void widen_half(const std::uint16_t* from, float* to, std::int64_t count);
void widen_bfloat16(const std::uint16_t* from, float* to, std::int64_t count);
// To nearest, ties to even; what is not a number stays so.
void narrow_half(const float* from, std::uint16_t* to, std::int64_t count);
void narrow_bfloat16(const float* from, std::uint16_t* to, std::int64_t count);

// Where `bits` are not the rounding of `master` other code wrote them, and master takes their
// value.
void follow_half(const std::uint16_t* bits, float* master, std::int64_t count);
void follow_bfloat16(const std::uint16_t* bits, float* master, std::int64_t count);

// Random numbers by place: element i of a call gets 16 bits of hash(first + i, key), so neither the
// split into calls nor the number of threads changes them. Two numbers of one place are independent
// when their `stream` (0 or 1) differs.
struct StochasticRounding {
  std::uint32_t key = 0;
  std::uint32_t first = 0;
  int stream = 0;
};

// Up with a probability that is the distance from the lower neighbour: right in the mean, so what
// is too small for one rounding still adds up (Gupta et al., Deep Learning with Limited Numerical
// Precision, ICML 2015).
void narrow_bfloat16(const float* from, std::uint16_t* to, std::int64_t count,
                     const StochasticRounding& rounding);

// Codes of 8 bits, with one scale for each block of 256 elements (Dettmers et al., 8-bit Optimizers
// via Block-wise Quantization, ICLR 2022). A code is a small float, and a scale a power of two, as
// in the OCP Microscaling formats, so reading and writing are shifts of a float32's own bits:
//
//   with sign      seeeemmm   value = scale * sign * 2^(e - 15) * (1 + m / 8)
//   without sign   eeeeemmm   value = scale * 2^(e - 31) * (1 + m / 8)
//
// e = m = 0 is 0. The scale is the smallest power of two of which the block's largest magnitude is
// at most 1.875 times, so nothing overflows. The first kind is for averages of gradients. The
// second is for averages of squares, which are divided by: its codes reach down to 5e-10 of the
// scale, and what is not 0 is never taken for it.
constexpr std::int64_t block_elements = 256;

enum class Codes { with_sign, without_sign };

// `codes` has `count` elements, `scales` one for each block begun.
void read_blocks(Codes codes, const std::uint8_t* from, const float* scales, float* to,
                 std::int64_t count);
// Rounds stochastically (unbiased), or to nearest where `rounding` is null. Values that were read
// are written without any change to them.
void write_blocks(Codes codes, const float* from, std::uint8_t* to, float* scales,
                  std::int64_t count, const StochasticRounding* rounding);

}  // namespace lockstep::optim
