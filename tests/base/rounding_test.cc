// Every product and every sum is rounded separately, because the build uses -ffp-contract=off.
// Otherwise a compiler may fuse them in functions that are compiled for a processor with FMA, and
// results would depend on the compiler.
#include <gtest/gtest.h>

namespace lockstep {
namespace {

#if defined(__x86_64__)
#define LOCKSTEP_FMA __attribute__((target("fma")))
bool has_fma() { return __builtin_cpu_supports("fma"); }
#else
#define LOCKSTEP_FMA
bool has_fma() { return true; }
#endif

// Tests are built without optimisation, but GCC only fuses when it optimises.
#if defined(__clang__)
#define LOCKSTEP_OPTIMIZED
#else
#define LOCKSTEP_OPTIMIZED __attribute__((optimize("O2")))
#endif

LOCKSTEP_FMA LOCKSTEP_OPTIMIZED __attribute__((noinline)) float product_minus(float a, float b,
                                                                              float c) {
  return a * b - c;
}

TEST(Rounding, AProductIsRoundedBeforeItIsAdded) {
  if (!has_fma()) GTEST_SKIP() << "this processor has no fused multiply-add";
  volatile float a = 1 + 0x1p-12F;
  volatile float rounded = 1 + 0x1p-11F;  // a * a rounded: the exact product is 2^-24 larger
  EXPECT_EQ(product_minus(a, a, rounded), 0);
}

}  // namespace
}  // namespace lockstep
