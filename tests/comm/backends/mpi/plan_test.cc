// Executes plans of messages in plain memory for all ranks at once: every collective, every number
// of ranks, and sizes below and above the limit between one round and two.
#include "comm/backends/mpi/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

namespace lockstep::mpi {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Counts = std::vector<std::int64_t>;

struct Rank {
  CallRecord call;
  MoveSchedule plan;
  Bytes input;
  Bytes output;
  Bytes scratch;

  std::uint8_t* at(Piece piece) {
    auto& memory = piece.memory == Memory::input    ? input
                   : piece.memory == Memory::output ? output
                                                    : scratch;
    EXPECT_LE(piece.begin + piece.bytes, static_cast<std::int64_t>(memory.size()));
    EXPECT_GE(piece.begin, 0);
    return memory.data() + piece.begin;
  }
};

std::uint8_t value(int rank, std::int64_t index) {
  return static_cast<std::uint8_t>(31 * rank + 7 * index + 1);
}

Bytes values(int rank, std::int64_t count) {
  Bytes bytes(count);
  for (std::int64_t index = 0; index < count; ++index) bytes[index] = value(rank, index);
  return bytes;
}

// Memory of all ranks. Elements have one byte; sums wrap around.
class World {
 public:
  explicit World(int size) : ranks_(size) {}

  Rank& rank(int number) { return ranks_[number]; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }

  void run() {
    std::size_t rounds = 0;
    for (int number = 0; number < size(); ++number) {
      auto& rank = ranks_[number];
      rank.plan = make_move_schedule(rank.call, number, size(), /*in_own_part=*/false);
      rank.scratch.resize(rank.plan.scratch_bytes);
      rounds = std::max(rounds, rank.plan.rounds.size());
    }
    for (std::size_t round = 0; round < rounds; ++round) run_round(round);
  }

 private:
  void run_round(std::size_t round) {
    std::map<std::pair<int, int>, Bytes> mail;
    for (int from = 0; from < size(); ++from) {
      for (const auto& send : steps(from, round).sends) {
        EXPECT_NE(send.peer, from);
        const auto* begin = ranks_[from].at(send.piece);
        bool is_first =
            mail.emplace(std::pair{from, send.peer}, Bytes(begin, begin + send.piece.bytes)).second;
        EXPECT_TRUE(is_first) << "two messages in one round";
      }
    }
    for (int to = 0; to < size(); ++to) {
      for (const auto& copy : steps(to, round).copies) {
        ASSERT_EQ(copy.from.bytes, copy.to.bytes);
        std::copy_n(ranks_[to].at(copy.from), copy.from.bytes, ranks_[to].at(copy.to));
      }
      for (const auto& receive : steps(to, round).receives) {
        auto letter = mail.extract({receive.peer, to});
        ASSERT_FALSE(letter.empty()) << "rank " << to << " waits for " << receive.peer;
        ASSERT_EQ(std::ssize(letter.mapped()), receive.piece.bytes);
        std::ranges::copy(letter.mapped(), ranks_[to].at(receive.piece));
      }
      if (const auto& sum = steps(to, round).sum) add(ranks_[to], *sum);
    }
    EXPECT_TRUE(mail.empty()) << "a message that nobody receives";
  }

  void add(Rank& rank, const Sum& sum) const {
    ASSERT_EQ(std::ssize(sum.from), size());
    Bytes total(sum.to.bytes);
    for (auto piece : sum.from) {
      ASSERT_EQ(piece.bytes, sum.to.bytes);
      for (std::int64_t index = 0; index < piece.bytes; ++index)
        total[index] = static_cast<std::uint8_t>(total[index] + rank.at(piece)[index]);
    }
    std::ranges::copy(total, rank.at(sum.to));
  }

  const Round& steps(int rank, std::size_t round) {
    static const Round nothing;
    const auto& rounds = ranks_[rank].plan.rounds;
    return round < rounds.size() ? rounds[round] : nothing;
  }

  std::vector<Rank> ranks_;
};

Bytes sum_of_all(int size, std::int64_t count) {
  Bytes total(count);
  for (int rank = 0; rank < size; ++rank) {
    for (std::int64_t index = 0; index < count; ++index)
      total[index] = static_cast<std::uint8_t>(total[index] + value(rank, index));
  }
  return total;
}

class Plans : public testing::TestWithParam<int> {
 protected:
  [[nodiscard]] int size() const { return GetParam(); }
  // Below and above whole_bytes, and too few for one part per rank.
  static constexpr std::int64_t lengths[] = {0, 1, 3, 100, whole_bytes, whole_bytes + 1, 50001};
};

TEST_P(Plans, AllReduce) {
  for (auto length : lengths) {
    World world(size());
    for (int rank = 0; rank < size(); ++rank) {
      world.rank(rank).call = {.collective = Collective::all_reduce, .elements = length};
      world.rank(rank).input = values(rank, length);
      world.rank(rank).output.resize(length);
    }
    world.run();
    for (int rank = 0; rank < size(); ++rank)
      EXPECT_EQ(world.rank(rank).output, sum_of_all(size(), length)) << length;
  }
}

TEST_P(Plans, ReduceAndBroadcastAtEveryRoot) {
  for (auto length : lengths) {
    for (int root = 0; root < size(); ++root) {
      for (auto collective : {Collective::reduce, Collective::broadcast}) {
        World world(size());
        for (int rank = 0; rank < size(); ++rank) {
          auto& mine = world.rank(rank);
          mine.call = {.collective = collective, .root = root, .elements = length};
          mine.input = values(rank, length);
          if (collective == Collective::broadcast) mine.output = values(rank, length);
          if (rank == root) mine.output = values(rank, length);
        }
        world.run();
        for (int rank = 0; rank < size(); ++rank) {
          if (collective == Collective::broadcast)
            EXPECT_EQ(world.rank(rank).output, values(root, length));
          else if (rank == root)
            EXPECT_EQ(world.rank(rank).output, sum_of_all(size(), length));
        }
      }
    }
  }
}

TEST_P(Plans, AllGatherAndReduceScatterOfUnevenParts) {
  Counts counts;
  for (int rank = 0; rank < size(); ++rank) counts.push_back(rank * 7 % 5 * 10);
  auto all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  World gathering(size());
  World scattering(size());
  for (int rank = 0; rank < size(); ++rank) {
    gathering.rank(rank).call = {
        .collective = Collective::all_gather, .elements = all, .output_counts = counts};
    gathering.rank(rank).input = values(rank, counts[rank]);
    gathering.rank(rank).output.resize(all);
    scattering.rank(rank).call = {
        .collective = Collective::reduce_scatter, .elements = all, .input_counts = counts};
    scattering.rank(rank).input = values(rank, all);
    scattering.rank(rank).output.resize(counts[rank]);
  }
  gathering.run();
  scattering.run();
  auto sum = sum_of_all(size(), all);
  Bytes gathered;
  for (int rank = 0; rank < size(); ++rank) {
    auto begin = sum.begin() + std::ssize(gathered);
    EXPECT_EQ(scattering.rank(rank).output, Bytes(begin, begin + counts[rank]));
    auto part = values(rank, counts[rank]);
    gathered.insert(gathered.end(), part.begin(), part.end());
  }
  for (int rank = 0; rank < size(); ++rank) EXPECT_EQ(gathering.rank(rank).output, gathered);
}

TEST_P(Plans, AllToAllOfUnevenParts) {
  auto count = [](int from, int to) -> std::int64_t { return (from * 3 + to * 5) % 4; };
  std::vector<Counts> in(size());
  std::vector<Counts> out(size());
  World world(size());
  for (int rank = 0; rank < size(); ++rank) {
    for (int peer = 0; peer < size(); ++peer) {
      in[rank].push_back(count(rank, peer));
      out[rank].push_back(count(peer, rank));
    }
    auto sends = std::accumulate(in[rank].begin(), in[rank].end(), std::int64_t{0});
    auto gets = std::accumulate(out[rank].begin(), out[rank].end(), std::int64_t{0});
    world.rank(rank).call = {.collective = Collective::all_to_all,
                             .elements = sends,
                             .input_counts = in[rank],
                             .output_counts = out[rank]};
    world.rank(rank).input = values(rank, sends);
    world.rank(rank).output.resize(gets);
  }
  world.run();
  for (int rank = 0; rank < size(); ++rank) {
    Bytes expected;
    for (int from = 0; from < size(); ++from) {
      auto begin = std::accumulate(in[from].begin(), in[from].begin() + rank, std::int64_t{0});
      for (std::int64_t index = 0; index < count(from, rank); ++index)
        expected.push_back(value(from, begin + index));
    }
    EXPECT_EQ(world.rank(rank).output, expected);
  }
}

TEST_P(Plans, GatherAndScatterAtEveryRoot) {
  constexpr std::int64_t part = 13;
  for (int root = 0; root < size(); ++root) {
    World gathering(size());
    World scattering(size());
    Bytes expected;
    for (int rank = 0; rank < size(); ++rank) {
      gathering.rank(rank).call = {
          .collective = Collective::gather, .root = root, .elements = part};
      gathering.rank(rank).input = values(rank, part);
      if (rank == root) gathering.rank(rank).output.resize(part * size());
      scattering.rank(rank).call = gathering.rank(rank).call;
      scattering.rank(rank).call.collective = Collective::scatter;
      if (rank == root) scattering.rank(rank).input = values(root, part * size());
      scattering.rank(rank).output.resize(part);
      auto mine = values(rank, part);
      expected.insert(expected.end(), mine.begin(), mine.end());
    }
    gathering.run();
    scattering.run();
    EXPECT_EQ(gathering.rank(root).output, expected);
    auto whole = values(root, part * size());
    for (int rank = 0; rank < size(); ++rank) {
      auto begin = whole.begin() + rank * part;
      EXPECT_EQ(scattering.rank(rank).output, Bytes(begin, begin + part));
    }
  }
}

// A rank leaves the barrier only after all ranks have entered it.
TEST_P(Plans, ABarrierHearsOfEveryRank) {
  std::vector<std::vector<bool>> knows(size(), std::vector<bool>(size()));
  std::vector<MoveSchedule> plans;
  for (int rank = 0; rank < size(); ++rank) {
    knows[rank][rank] = true;
    plans.push_back(make_move_schedule({.collective = Collective::barrier}, rank, size(), false));
  }
  for (std::size_t round = 0; round < plans[0].rounds.size(); ++round) {
    auto before = knows;
    for (int rank = 0; rank < size(); ++rank) {
      for (const auto& receive : plans[rank].rounds[round].receives) {
        for (int other = 0; other < size(); ++other)
          if (before[receive.peer][other]) knows[rank][other] = true;
      }
    }
  }
  for (const auto& row : knows) EXPECT_EQ(std::ranges::count(row, true), size());
}

// By this message, two ranks detect that their calls differ, whatever the calls are.
TEST_P(Plans, EachRankHearsFromTheOneBeforeIt) {
  if (size() == 1) return;
  using enum Collective;
  for (auto collective : {all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all,
                          gather, scatter, barrier}) {
    for (std::int64_t elements : {0, size(), 100'000 * size()}) {
      for (int rank = 0; rank < size(); ++rank) {
        const auto plan = make_move_schedule(
            {.collective = collective, .root = 0, .elements = elements}, rank, size(), false);
        bool hears = false;
        for (const auto& round : plan.rounds) {
          for (const auto& receive : round.receives)
            hears |= receive.peer == (rank + size() - 1) % size();
        }
        EXPECT_TRUE(hears) << name_of(collective) << " of " << elements << ", rank " << rank;
      }
    }
  }
}

TEST(MoveSchedule, AMessageIsAnswered) {
  for (std::int64_t bytes : {0, 5}) {
    World world(2);
    world.rank(0).call = {.collective = Collective::send, .root = 1, .elements = bytes};
    world.rank(1).call = {.collective = Collective::recv, .root = 0, .elements = bytes};
    world.rank(0).input = values(0, bytes);
    world.rank(1).output.resize(bytes);
    world.run();
    EXPECT_EQ(world.rank(1).output, world.rank(0).input);
    EXPECT_EQ(world.rank(0).plan.rounds.back().receives.size(), 1U) << "the receiver's answer";
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Plans, testing::Values(1, 2, 3, 4, 5, 7, 8, 17));

}  // namespace
}  // namespace lockstep::mpi
