// The largest number of ranks on one host, with arenas of the default size. Each arena has as much
// address space as the host has memory, and all ranks map all arenas.
#include "comm/backends/shm/ranks.h"
#include "support/sanitizers.h"

#include <gtest/gtest.h>

namespace lockstep::test {
namespace {

constexpr int ranks = 128;

// Only a few bytes of a group's block grow with the square of the number of ranks.
TEST(ManyRanks, AGroupTakesLittleOfAnArena) {
  for (int members : {2, 8, 9, 16, 64, 128, kernels::max_ranks}) {
    auto bytes = shm::GroupBlock::bytes(members);
    EXPECT_LE(bytes, static_cast<std::size_t>(members) << (members <= 8 ? 19 : 17)) << members;
    // Three blocks fit into a rank's arena on a machine with 24 GB, and leave room for tensors.
    EXPECT_LE(3 * bytes, (std::size_t{24} << 30) / 4 * 3 / static_cast<std::size_t>(members))
        << members;
  }
}

TEST(ManyRanks, MeetAndWorkWithTheArenaThatTheyGet) {
  if (under_thread_sanitizer) GTEST_SKIP() << "its memory is too large for so many";
  auto options = small_options();
  options.join_timeout = options.timeout = std::chrono::seconds(35);
  options.arena_bytes = shm::arena_bytes(std::nullopt, "", ranks);
  options.arena_bytes += shm::bytes_for_tensors(options.arena_bytes, ranks);
  TemporaryFolder folder;
  auto body = on_endpoint(
      folder, ranks,
      [](Endpoint& endpoint) {
        GroupMember& group = endpoint.world();
        auto with_time = [](Posting posting) {
          posting.timeout = std::chrono::seconds(35);
          return posting;
        };
        std::vector<float> values(4, 1);
        run(group, with_time(call(Collective::all_reduce, values, values)));
        EXPECT_EQ(values[3], ranks);
        std::vector<float> sent(ranks, static_cast<float>(group.rank()));
        std::vector<float> received(ranks, -1);
        std::vector<std::int64_t> ones(ranks, 1);
        auto exchange = with_time(call(Collective::all_to_all, sent, received));
        exchange.input_counts = exchange.output_counts = ones;
        run(group, std::move(exchange));
        EXPECT_EQ(received[100], 100);
        auto message =
            post(group, with_time(call(Collective::send, sent, sent, (group.rank() + 1) % ranks)));
        int previous = (group.rank() + ranks - 1) % ranks;
        run(group, with_time(call(Collective::recv, received, received, previous)));
        group.wait(message);
        EXPECT_EQ(received[100], static_cast<float>(previous));
        run(group, with_time(barrier_call()));
      },
      options);
  expect_ranks(ranks, body);
}

}  // namespace
}  // namespace lockstep::test
