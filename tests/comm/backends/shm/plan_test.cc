#include "comm/backends/shm/plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace lockstep::shm {
namespace {

// The source of an output element: an element of one rank, or the combination over all ranks.
struct Source {
  static constexpr int everyone = -1;
  static constexpr int nobody = -2;
  int rank = nobody;
  std::int64_t element = 0;
  bool operator==(const Source&) const = default;
};

constexpr std::int64_t most_elements = 1 << 20;  // of an output in these tests

// The sources of each output element of each rank.
using Written = std::vector<std::vector<Source>>;

void note(Written& written, int rank, std::int64_t element, Source source) {
  ASSERT_TRUE(element >= 0 && element < most_elements) << element << " of rank " << rank;
  auto& output = written[rank];
  if (std::ssize(output) <= element) output.resize(element + 1);
  if (output[element].rank != Source::nobody)
    ADD_FAILURE() << "element " << element << " of rank " << rank << " is written twice";
  output[element] = source;
}

void run_segment(const Shape& shape, const Plan& plan, int part, Range range, Written& written) {
  if (!combines(shape.collective)) {
    plan.moves(part, range, [&](const Move& move) {
      for (int rank = 0; rank < shape.size; ++rank) {
        if (move.destination != Move::everyone && move.destination != rank) continue;
        if (!writes_output(shape.collective, rank, shape.root) &&
            shape.collective == Collective::broadcast)
          continue;
        for (std::int64_t i = 0; i < move.length; ++i) {
          note(written, rank, move.destination_offset + i, {move.source, move.source_offset + i});
        }
      }
    });
    return;
  }
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    Source from{Source::everyone, plan.combine_input_offset(part) + i};
    for (int rank = 0; rank < shape.size; ++rank) {
      if (shape.collective == Collective::reduce_scatter
              ? rank == part
              : writes_output(shape.collective, rank, shape.root)) {
        note(written, rank, plan.combine_output_offset(part) + i, from);
      }
    }
  }
}

Written run_all(const Shape& shape, const Cutting& cutting) {
  Plan plan(shape, cutting);
  Written written(shape.size);
  std::int64_t segments = 0;
  for (int part = 0; part < plan.parts(); ++part) {
    for (std::int64_t i = 0; i < plan.segments(part); ++i, ++segments) {
      if (!plan.is_single()) {
        run_segment(shape, plan, part, plan.segment(part, i), written);
        continue;
      }
      for (int each = 0; each < plan.parts(); ++each)
        run_segment(shape, plan, each, plan.segment(each, 0), written);
    }
  }
  EXPECT_EQ(segments, plan.total());
  EXPECT_LE(segments, Plan::max_segments);
  return written;
}

// The definition of each collective, element by element.
Written expected(const Shape& shape) {
  Written written(shape.size);
  auto everyone = [](std::int64_t element) { return Source{Source::everyone, element}; };
  auto count_of = [&](int rank) { return shape.counts.empty() ? shape.count : shape.counts[rank]; };
  auto before = [&](int rank) {
    std::int64_t sum = 0;
    for (int earlier = 0; earlier < rank; ++earlier) sum += count_of(earlier);
    return sum;
  };
  auto piece = [&](int from, int to) {
    return shape.exchange ? shape.exchange->piece(from, to) : shape.count;
  };
  for (int rank = 0; rank < shape.size; ++rank) {
    switch (shape.collective) {
      case Collective::all_reduce:
        for (std::int64_t i = 0; i < shape.count; ++i) note(written, rank, i, everyone(i));
        break;
      case Collective::reduce:
        for (std::int64_t i = 0; rank == shape.root && i < shape.count; ++i)
          note(written, rank, i, everyone(i));
        break;
      case Collective::reduce_scatter:
        for (std::int64_t i = 0; i < count_of(rank); ++i)
          note(written, rank, i, everyone(before(rank) + i));
        break;
      case Collective::broadcast:
        for (std::int64_t i = 0; rank != shape.root && i < shape.count; ++i)
          note(written, rank, i, {shape.root, i});
        break;
      case Collective::all_gather:
      case Collective::gather:
        for (int from = 0; from < shape.size; ++from) {
          if (shape.collective == Collective::gather && rank != shape.root) continue;
          for (std::int64_t i = 0; i < count_of(from); ++i)
            note(written, rank, before(from) + i, {from, i});
        }
        break;
      case Collective::scatter:
        for (std::int64_t i = 0; i < count_of(rank); ++i)
          note(written, rank, i, {shape.root, before(rank) + i});
        break;
      case Collective::all_to_all: {
        std::int64_t at = 0;
        for (int from = 0; from < shape.size; ++from) {
          std::int64_t first = 0;
          for (int to = 0; to < rank; ++to) first += piece(from, to);
          for (std::int64_t i = 0; i < piece(from, rank); ++i)
            note(written, rank, at++, {from, first + i});
        }
        break;
      }
      case Collective::send:
      case Collective::recv:
        for (std::int64_t i = 0; rank == 1 && i < shape.count; ++i) note(written, rank, i, {0, i});
        break;
      case Collective::barrier:
        break;
    }
  }
  return written;
}

bool is_rooted(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast ||
         collective == Collective::gather || collective == Collective::scatter;
}

void check_plan(const Shape& shape) {
  const Written right = expected(shape);
  for (const Cutting& cutting : {Cutting{4, 0, 8, 16}, Cutting{1, 0, 1, 1}, Cutting{16, 40, 32, 64},
                                 Cutting{16, 1 << 20, 32, 64}}) {
    ASSERT_TRUE(run_all(shape, cutting) == right)
        << name_of(shape.collective) << " of " << shape.count << " on " << shape.size;
  }
}

TEST(Plan, WritesEveryElementOnceAndFromTheRightPlace) {
  for (int size = 1; size <= 17; ++size) {
    for (std::int64_t count : {0, 1, 5, 67}) {
      for (auto collective :
           {Collective::all_reduce, Collective::reduce, Collective::broadcast,
            Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all,
            Collective::gather, Collective::scatter, Collective::barrier}) {
        for (int root : std::set{0, is_rooted(collective) ? size - 1 : 0})
          check_plan({collective, size, root, count, {}, {}});
      }
    }
  }
  for (std::int64_t count : {0, 1, 100}) check_plan({Collective::send, 2, 0, count, {}, {}});
}

TEST(Plan, TakesUnevenCounts) {
  for (int size = 1; size <= 17; ++size) {
    std::vector<std::int64_t> counts(size);
    std::vector<std::int64_t> matrix(static_cast<std::size_t>(size) * size);
    for (int rank = 0; rank < size; ++rank) counts[rank] = rank % 3 == 1 ? 0 : rank * 7 + 1;
    for (std::size_t i = 0; i < matrix.size(); ++i)
      matrix[i] = static_cast<std::int64_t>(i * 5 % 7);
    auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    check_plan({Collective::all_gather, size, 0, total, counts, {}});
    check_plan({Collective::reduce_scatter, size, 0, total, counts, {}});
    const AllToAllCounts exchange(size, matrix);
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to)
        ASSERT_EQ(exchange.piece(from, to), matrix[static_cast<std::size_t>(from * size + to)]);
    }
    check_plan({Collective::all_to_all, size, 0, 0, {}, &exchange});
  }
}

TEST(Plan, NeverMakesMoreSegmentsThanACursorCounts) {
  for (int size : {1, 2, 17}) {
    Plan plan({Collective::all_reduce, size, 0, std::int64_t{1} << 40, {}, {}}, {16, 0, 16, 32});
    EXPECT_LE(plan.total(), Plan::max_segments);
    EXPECT_GE(plan.total(), size);
  }
}

TEST(Plan, BeginsSegmentsAtTheGrain) {
  Plan plan({Collective::all_reduce, 3, 0, 1001, {}, {}}, {16, 0, 32, 64});
  for (int part = 0; part < 3; ++part) {
    EXPECT_EQ(plan.combine_input_offset(part) % 16, 0);
    for (std::int64_t i = 0; i < plan.segments(part); ++i)
      EXPECT_EQ(plan.segment(part, i).begin % 16, 0);
  }
}

}  // namespace
}  // namespace lockstep::shm
