// A posted call keeps the record and the tensors of its Call.
#include "comm/backend/posted_call.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>

using namespace lockstep;

namespace {

TEST(PostedCall, HasARecordOfItsCall) {
  auto part = at::empty({3}, at::kInt);
  auto whole = at::empty({6}, at::kInt);
  const PostedCall gathers(Call{{.collective = Collective::all_gather,
                                 .dtype = DType::int32,
                                 .elements = 6,
                                 .tag = "weights",
                                 .timeout = std::chrono::seconds(1),
                                 .where = std::source_location::current(),
                                 .id = {.number = 7}},
                                part,
                                whole});
  EXPECT_EQ(gathers.dtype, DType::int32);
  EXPECT_EQ(gathers.elements, 6);
  EXPECT_EQ(gathers.fingerprint, fingerprint_of(gathers.record()));
  EXPECT_EQ(gathers.timeout, std::chrono::seconds(1));
  EXPECT_EQ(describe(gathers).substr(0, 48), "all_gather #7 (weights, 24 B, posted_call_test.c");
  const PostedCall barrier(Call{{.collective = Collective::barrier, .id = {.number = 2}}});
  EXPECT_FALSE(barrier.dtype);
  EXPECT_NE(barrier.fingerprint, gathers.fingerprint);
}

TEST(PostedCall, HoldsTensorsThatItsCallerMayChange) {
  auto tensor = at::empty({4});
  const PostedCall call(
      Call{{.collective = Collective::all_reduce, .id = {.number = 1}}, tensor, tensor});
  EXPECT_TRUE(call.input.is_alias_of(tensor));
  EXPECT_FALSE(call.input.is_same(tensor));
  EXPECT_TRUE(call.output.is_same(call.input));
}

}  // namespace
