// Conversions between float32 and smaller formats: 16-bit floats, and blocks of 8-bit codes; and a
// sum over gradients.
#pragma once

// The instruction sets for which the kernels are compiled: enough to use the widest registers on
// every processor. Vectors of unknown length (SVE) are excluded, because they cannot be struct
// members.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace lockstep::optim {

// Conversions of IEEE half and bfloat16 numbers, given as bits. `dtype`: Half or BFloat16.
void widen(c10::ScalarType dtype, const std::uint16_t* from, float* to, std::int64_t count);
// Rounds to nearest, ties to even; NaN stays NaN.
void narrow(c10::ScalarType dtype, const float* from, std::uint16_t* to, std::int64_t count);

// If `bits` are not the rounding of `master`, other code has written them: sets `master` to their
// value.
void follow(c10::ScalarType dtype, const std::uint16_t* bits, float* master, std::int64_t count);

// Random numbers by index: element i of a call gets 16 bits of hash(first + i, key), so they do not
// depend on the split into calls or the number of threads. Two numbers of one index are independent
// if their `stream` (0 or 1) differs.
struct StochasticRounding {
  std::uint32_t key = 0;
  std::uint32_t first = 0;
  int stream = 0;
};

// Rounds up with a probability equal to the distance from the lower neighbour. The mean is exact,
// so values that are too small for one rounding still add up (Gupta et al., Deep Learning with
// Limited Numerical Precision, ICML 2015).
void narrow_bfloat16(const float* from, std::uint16_t* to, std::int64_t count,
                     const StochasticRounding& rounding);

// 8-bit codes, with one scale per block of 256 elements (Dettmers et al., 8-bit Optimizers via
// Block-wise Quantization, ICLR 2022). A code is a small float and a scale is a power of two, as in
// the OCP Microscaling formats, so reading and writing only shift the bits of a float32:
//
//   with sign      seeeemmm   value = scale * sign * 2^(e - 15) * (1 + m / 8)
//   without sign   eeeeemmm   value = scale * 2^(e - 31) * (1 + m / 8)
//
// e = m = 0 encodes 0. The scale is the smallest power of two for which the block's largest
// magnitude is at most 1.875 * scale, so nothing overflows. The format with sign is for averages of
// gradients. The format without sign is for averages of squares, which are divisors: its codes
// reach down to 5e-10 of the scale, and a positive value is never rounded to 0.
constexpr std::int64_t block_elements = 256;

enum class Codes { with_sign, without_sign };

// `from` has `count` codes, and `scales` has one element per block, including a partial last block.
void read_blocks(Codes codes, const std::uint8_t* from, const float* scales, float* to,
                 std::int64_t count);
// Rounds stochastically (unbiased), or to nearest if `rounding` is null. Values that read_blocks()
// returned are written back unchanged.
void write_blocks(Codes codes, const float* from, std::uint8_t* to, float* scales,
                  std::int64_t count, const StochasticRounding* rounding);

// Returns the sum of clamp(g * factor, -limit, limit)^2, accumulated in float64. It is finite if
// and only if every element is, because a sum of squares of float32 cannot overflow float64 here.
double sum_of_squares(const float* values, std::int64_t count, float factor, float limit);

}  // namespace lockstep::optim
