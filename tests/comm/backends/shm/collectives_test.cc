// Every collective on ranks as threads, staged and in the arena, against values known by
// construction.
#include "comm/backends/shm/ranks.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lockstep::test {
namespace {

// The value of rank `rank` at element `i`: a small integer, so that sums are exact.
float value(int rank, std::size_t i) {
  return static_cast<float>((rank + 1) * 7 + static_cast<int>(i % 1013));
}

template <typename Array>
void fill(Array& array, int rank, std::size_t first = 0) {
  for (std::size_t i = 0; i < array.size(); ++i) array.data()[i] = value(rank, first + i);
}

float sum_of_ranks(int size, std::size_t i) {
  float sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += value(rank, i);
  return sum;
}

// Compares without an assertion per element, which would be slow.
template <typename Array, typename Expected>
void expect_values(Array& array, const char* operation, const Expected& expected) {
  const float* data = array.data();
  for (std::size_t i = 0; i < array.size(); ++i)
    if (data[i] != expected(i)) FAIL() << operation << " " << i << ": " << data[i];
}

struct InArena {
  Endpoint& endpoint;
  auto make(std::size_t count) { return std::make_unique<ArenaArray<float>>(endpoint, count); }
};

struct Outside {
  explicit Outside(Endpoint&) {}
  auto make(std::size_t count) { return std::make_unique<std::vector<float>>(count); }
};

template <typename Memory>
void check_all(Endpoint& endpoint, std::size_t count) {
  Memory memory{endpoint};
  GroupMember& group = endpoint.world();
  int me = group.rank();
  int size = group.size();

  auto all = memory.make(count);
  fill(*all, me);
  run(group, call(Collective::all_reduce, *all, *all));
  expect_values(*all, "all_reduce", [&](auto i) { return sum_of_ranks(size, i); });

  for (int root = 0; root < size; ++root) {
    auto reduced = memory.make(count);
    fill(*reduced, me);
    run(group, call(Collective::reduce, *reduced, *reduced, root));
    expect_values(*reduced, "reduce",
                  [&](auto i) { return me == root ? sum_of_ranks(size, i) : value(me, i); });

    auto sent = memory.make(count);
    fill(*sent, me);
    run(group, call(Collective::broadcast, *sent, *sent, root));
    expect_values(*sent, "broadcast", [&](auto i) { return value(root, i); });

    auto piece = memory.make(count);
    auto whole = memory.make(me == root ? count * size : 0);
    fill(*piece, me);
    run(group, call(Collective::gather, *piece, *whole, root));
    expect_values(*whole, "gather",
                  [&](auto i) { return value(static_cast<int>(i / count), i % count); });
    if (me == root) fill(*whole, me);
    run(group, call(Collective::scatter, *whole, *piece, root));
    expect_values(*piece, "scatter", [&](auto i) { return value(root, me * count + i); });
  }

  auto mine = memory.make(count);
  auto gathered = memory.make(count * size);
  fill(*mine, me);
  run(group, call(Collective::all_gather, *mine, *gathered));
  expect_values(*gathered, "all_gather",
                [&](auto i) { return value(static_cast<int>(i / count), i % count); });

  fill(*gathered, me);
  run(group, call(Collective::reduce_scatter, *gathered, *mine));
  expect_values(*mine, "reduce_scatter",
                [&](auto i) { return sum_of_ranks(size, me * count + i); });

  auto received = memory.make(count * size);
  fill(*gathered, me);
  run(group, call(Collective::all_to_all, *gathered, *received));
  expect_values(*received, "all_to_all",
                [&](auto i) { return value(static_cast<int>(i / count), me * count + i % count); });
  run(group, barrier_call());
}

class ShmCollectives : public testing::TestWithParam<int> {};

TEST_P(ShmCollectives, AreRightInTheArena) {
  for (std::size_t count : {0, 1, 17, 250, 1001, 1024, 100'003}) {
    run_as_rank_threads(GetParam(),
                        [&](Endpoint& endpoint) { check_all<InArena>(endpoint, count); });
  }
}

TEST_P(ShmCollectives, AreRightOutsideTheArena) {
  // Tensors of the last length are so long that peers read them in place, unless they are combined.
  for (std::size_t count : {0, 1, 17, 250, 1001, 1024, 100'003, 300'007}) {
    run_as_rank_threads(GetParam(),
                        [&](Endpoint& endpoint) { check_all<Outside>(endpoint, count); });
  }
}

TEST_P(ShmCollectives, TakeUnevenCounts) {
  run_as_rank_threads(GetParam(), [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    int me = group.rank();
    int size = group.size();
    std::vector<std::int64_t> counts(size);
    for (int rank = 0; rank < size; ++rank) counts[rank] = rank % 2 == 0 ? rank * 1001 : 0;
    auto total =
        static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    auto before = static_cast<std::size_t>(
        std::accumulate(counts.begin(), counts.begin() + me, std::int64_t{0}));

    std::vector<float> mine(counts[me]);
    std::vector<float> all(total);
    fill(mine, me);
    auto gather = call(Collective::all_gather, mine, all);
    gather.output_counts = counts;
    run(group, std::move(gather));
    std::size_t at = 0;
    for (int rank = 0; rank < size; ++rank) {
      for (std::int64_t i = 0; i < counts[rank]; ++i) ASSERT_EQ(all[at++], value(rank, i));
    }
    fill(all, me);
    auto scatter = call(Collective::reduce_scatter, all, mine);
    scatter.input_counts = counts;
    run(group, std::move(scatter));
    for (std::size_t i = 0; i < mine.size(); ++i)
      ASSERT_EQ(mine[i], sum_of_ranks(size, before + i));

    // Rank i sends 3 * i + j elements to rank j.
    std::vector<std::int64_t> sends(size);
    std::vector<std::int64_t> expects(size);
    for (int other = 0; other < size; ++other) {
      sends[other] = 3 * me + other;
      expects[other] = 3 * other + me;
    }
    std::vector<float> out(std::accumulate(sends.begin(), sends.end(), std::int64_t{0}));
    std::vector<float> in(std::accumulate(expects.begin(), expects.end(), std::int64_t{0}));
    fill(out, me);
    auto exchange = call(Collective::all_to_all, out, in);
    exchange.input_counts = sends;
    exchange.output_counts = expects;
    run(group, std::move(exchange));
    at = 0;
    for (int other = 0; other < size; ++other) {
      std::size_t first = 0;
      for (int earlier = 0; earlier < me; ++earlier) first += 3 * other + earlier;
      for (std::int64_t i = 0; i < expects[other]; ++i)
        ASSERT_EQ(in[at++], value(other, first + i));
    }
  });
}

TEST_P(ShmCollectives, PassMessagesInOrder) {
  run_as_rank_threads(GetParam(), [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    int me = group.rank();
    int size = group.size();
    constexpr int rounds = 40;  // more than a channel's ring holds
    for (std::size_t count : {1, 30'001}) {
      std::vector<float> out(count);
      std::vector<float> in(count);
      for (int round = 0; round < rounds; ++round) {
        for (int other = 0; other < size; ++other) {
          if (other == me) continue;
          fill(out, me, round);
          CallId sent;
          auto send = call(Collective::send, out, out, other);
          sent = post(group, std::move(send));
          run(group, call(Collective::recv, in, in, other));
          for (std::size_t i = 0; i < count; i += 97) ASSERT_EQ(in[i], value(other, round + i));
          group.wait(sent);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShmCollectives, testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace lockstep::test
