#include "elastic/warm_up.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(WarmUp, DrawsNoRandomNumbers) {
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  warm_up();
  EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
}

}  // namespace
}  // namespace lockstep
