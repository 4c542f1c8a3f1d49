// Which calls belong together, and the words for them.
#include "comm/backend/posted_call.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>

#include <set>

using namespace lockstep;

namespace {

PostedCall reduction_call(std::int64_t elements, at::ScalarType dtype = at::kFloat, Op op = Op::sum,
                          std::string_view tag = {}, std::uint64_t number = 7) {
  auto tensor = at::empty({elements}, dtype);
  return {{.collective = Collective::all_reduce,
           .op = op,
           .input = tensor,
           .output = tensor,
           .tag = tag},
          number};
}

TEST(PostedCall, AgreesWithTheSameCallOnly) {
  const auto call = reduction_call(4);
  EXPECT_TRUE(same_call(call, reduction_call(4)));
  const std::vector<PostedCall> others{reduction_call(5),
                                       reduction_call(4, at::kInt),
                                       reduction_call(4, at::kFloat, Op::max),
                                       reduction_call(4, at::kFloat, Op::sum, "bucket 1"),
                                       {{.collective = Collective::barrier}, 7}};
  std::set<std::uint64_t> fingerprints{
      fingerprint_of(call), fingerprint_of(reduction_call(4, at::kFloat, Op::sum, {}, 8))};
  for (const auto& other : others) {
    EXPECT_FALSE(same_call(call, other));
    fingerprints.insert(fingerprint_of(other));
  }
  EXPECT_EQ(fingerprints.size(), others.size() + 2);
}

TEST(PostedCall, ASendBelongsToAReceiveOfItsSize) {
  auto tensor = at::empty({3});
  const PostedCall send({.collective = Collective::send, .root = 1, .input = tensor}, 1);
  const PostedCall receive({.collective = Collective::recv, .root = 0, .output = tensor}, 1);
  const PostedCall longer({.collective = Collective::recv, .root = 0, .output = at::empty({4})}, 1);
  EXPECT_TRUE(same_call(send, receive));
  EXPECT_EQ(fingerprint_of(send), fingerprint_of(receive));
  EXPECT_FALSE(same_call(send, longer));
  EXPECT_NE(fingerprint_of(send), fingerprint_of(longer));
}

TEST(PostedCall, IsDescribedInWords) {
  auto call = reduction_call(3 << 20, at::kFloat, Op::average, "bucket 2", 417);
  EXPECT_EQ(describe(call), "all_reduce #417 (bucket 2, 12 MiB)");
  EXPECT_EQ(describe(PostedCall({.collective = Collective::barrier}, 2)), "barrier #2");
  auto full = describe_fully(call);
  EXPECT_EQ(full.substr(0, full.find(" at ")),
            "all_reduce #417 (average, 3145728 x Float, bucket 2)");
  auto kept = call.without_tensors();
  EXPECT_FALSE(kept.input.defined() || kept.output.defined());
  EXPECT_EQ(describe(kept), describe(call));
}

}  // namespace
