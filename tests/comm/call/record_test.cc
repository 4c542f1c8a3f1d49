// Tests which calls match, how they are described, and how they are sent to other ranks.
#include "comm/call/record.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

using namespace lockstep;

namespace {

CallRecord reduction_of(std::int64_t elements, DType dtype = DType::float32, Op op = Op::sum,
                        std::string tag = {}, std::uint64_t number = 7) {
  return {.collective = Collective::all_reduce,
          .op = op,
          .dtype = dtype,
          .elements = elements,
          .tag = std::move(tag),
          .file = "train.cc",
          .line = 88,
          .number = number};
}

CallRecord message_of(Collective collective, int peer, std::int64_t elements) {
  return {.collective = collective,
          .root = peer,
          .dtype = DType::float32,
          .elements = elements,
          .file = "train.cc",
          .line = 9,
          .number = 1};
}

TEST(CallRecord, AgreesWithTheSameCallOnly) {
  const auto call = reduction_of(4);
  EXPECT_TRUE(same_call(call, reduction_of(4)));
  const std::vector<CallRecord> others{reduction_of(5),
                                       reduction_of(4, DType::int32),
                                       reduction_of(4, DType::float32, Op::max),
                                       reduction_of(4, DType::float32, Op::sum, "bucket 1"),
                                       {.collective = Collective::barrier, .number = 7}};
  std::set<std::uint64_t> fingerprints{
      fingerprint_of(call), fingerprint_of(reduction_of(4, DType::float32, Op::sum, {}, 8))};
  for (const auto& other : others) {
    EXPECT_FALSE(same_call(call, other));
    fingerprints.insert(fingerprint_of(other));
  }
  EXPECT_EQ(fingerprints.size(), others.size() + 2);
}

TEST(CallRecord, ASendBelongsToAReceiveOfItsSize) {
  const auto send = message_of(Collective::send, 1, 3);
  const auto receive = message_of(Collective::recv, 0, 3);
  const auto longer = message_of(Collective::recv, 0, 4);
  EXPECT_TRUE(same_call(send, receive));
  EXPECT_EQ(fingerprint_of(send), fingerprint_of(receive));
  EXPECT_FALSE(same_call(send, longer));
  EXPECT_NE(fingerprint_of(send), fingerprint_of(longer));
  EXPECT_EQ(channel_of(Collective::send, 1, 0), channel_of(Collective::recv, 0, 1));
  EXPECT_TRUE(channel_of(Collective::barrier, -1, 3).is_collective());
}

TEST(CallRecord, IsDescribedInWords) {
  const auto call = reduction_of(3 << 20, DType::float32, Op::average, "bucket 2", 417);
  EXPECT_EQ(describe(call), "all_reduce #417 (bucket 2, 12 MiB, train.cc:88)");
  EXPECT_EQ(describe_fully(call),
            "all_reduce #417 (bucket 2, average, 3145728 x float32, train.cc:88)");
  EXPECT_EQ(describe({.collective = Collective::barrier, .number = 2}), "barrier #2");
  const auto receive = message_of(Collective::recv, 1, 3);
  EXPECT_EQ(describe(receive), "recv #1 from rank 1 (12 B, train.cc:9)");
  EXPECT_EQ(describe_due(receive), "send for recv #1 from rank 1 (12 B, train.cc:9)");
}

TEST(CallRecord, NamesRanksByTheirNumbersInTheWorldToo) {
  const GroupNames pair("pair", {1, 3});
  EXPECT_EQ(describe(message_of(Collective::recv, 1, 3), pair),
            "recv #1 from rank 1 (rank 3 of the world, 12 B, train.cc:9)");
  CallRecord call{.collective = Collective::broadcast,
                  .root = 0,
                  .dtype = DType::int64,
                  .elements = 2,
                  .number = 4};
  EXPECT_EQ(describe_fully(call, pair), "broadcast #4 (root 0 (rank 1 of the world), 2 x int64)");
  CallRecord exchange{.collective = Collective::all_to_all,
                      .dtype = DType::int64,
                      .input_counts = {1, 3},
                      .output_counts = {1, 2},
                      .number = 1};
  EXPECT_EQ(describe_difference(call, 1, exchange, 0, pair),
            "rank 0 (rank 1 of the world) called all_to_all #1 (int64, uneven) where rank 1 (rank "
            "3 of the world) called broadcast #4 (root 0 (rank 1 of the world), 2 x int64)");
  auto theirs = exchange;
  theirs.output_counts = {4, 3};
  EXPECT_NE(describe_difference(exchange, 0, theirs, 1, pair)
                .find("uneven: 3 to rank 1 (rank 3 of the world), 2 from it"),
            std::string::npos);
}

TEST(CallRecord, ADifferenceShowsTheFirstCountThatDiffers) {
  CallRecord one{.collective = Collective::all_gather,
                 .dtype = DType::float32,
                 .elements = 5,
                 .output_counts = {2, 3},
                 .number = 1};
  auto other = one;
  other.elements = 6;
  other.output_counts = {2, 4};
  EXPECT_EQ(describe_difference(other, 1, one, 0),
            "rank 0 called all_gather #1 (5 x float32, uneven: 3 of rank 1) where rank 1 called "
            "all_gather #1 (6 x float32, uneven: 4 of rank 1)");
  CallRecord exchange{.collective = Collective::all_to_all,
                      .dtype = DType::int64,
                      .input_counts = {1, 3},
                      .output_counts = {1, 2},
                      .number = 1};
  auto theirs = exchange;
  theirs.output_counts = {4, 3};
  EXPECT_FALSE(counts_agree(exchange, 0, theirs, 1));
  EXPECT_EQ(describe_difference(exchange, 0, theirs, 1),
            "rank 0 called all_to_all #1 (int64, uneven: 3 to rank 1, 2 from it) where rank 1 "
            "called all_to_all #1 (int64, uneven: 1 to rank 0, 4 from it)");
}

TEST(CallRecord, IsReadAsItWasWritten) {
  auto uneven = reduction_of(9, DType::bfloat16, Op::max, "two words");
  uneven.collective = Collective::reduce_scatter;
  uneven.input_counts = {1, 0, 8};
  for (const auto& call : {reduction_of(4), uneven, message_of(Collective::send, 2, 7),
                           CallRecord{.collective = Collective::barrier, .number = 1}}) {
    EXPECT_EQ(read_call(written(call)), call) << written(call);
  }
  EXPECT_EQ(read_call(written(reduction_of(4, DType::float32, Op::sum, "two\nlines")))->tag,
            "two lines");
  for (const char* text : {"", " ", "3", "99 0 0 0 0 0 0 0 0 f", "0 0 0 -2 0 0 0 0 0 f",
                           "0 0 0 0 1 1 1 9 1 1 f", "x 0 0 0 0 0 0 0 0 f t"})
    EXPECT_FALSE(read_call(text)) << text;
}

}  // namespace

using namespace lockstep;

namespace {

TEST(GroupNames, OfTheWorldAreItsRanks) {
  const GroupNames world;
  const std::vector<int> ranks{0, 1, 2, 5};
  EXPECT_EQ(world.rank(3), "rank 3");
  EXPECT_EQ(world.ranks_own(3), "rank 3's");
  EXPECT_EQ(world.ranks(ranks), "ranks 0-2, 5");
  EXPECT_EQ(world.ending(), "");
}

TEST(GroupNames, OfPartsOfPartsHaveTheWorldsRanks) {
  const std::vector<int> odd{1, 3, 5, 7}, last{3, 2}, all{0, 1}, first{0};
  const GroupNames half = GroupNames().part(odd, "odd");
  const GroupNames pair = half.part(last, "odd/last");
  EXPECT_EQ(half.rank(1), "rank 1 (rank 3 of the world)");
  EXPECT_EQ(pair.rank(0), "rank 0 (rank 7 of the world)");
  EXPECT_EQ(pair.ranks_own(1), "rank 1's (rank 5 of the world)");
  EXPECT_EQ(pair.ranks(all), "ranks 0, 1 (ranks 7, 5 of the world)");
  EXPECT_EQ(pair.ending(), " [group odd/last]");
  EXPECT_EQ(half.part(first, "one").rank(0), "rank 0 (rank 1 of the world)");
}

// Text from a peer may name a rank that does not exist.
TEST(GroupNames, KnowNothingOfRanksThatAreNotOfTheGroup) {
  const GroupNames pair("pair", {4, 5});
  EXPECT_EQ(pair.rank(2), "rank 2");
  EXPECT_EQ(pair.rank(-1), "rank -1");
}

}  // namespace
