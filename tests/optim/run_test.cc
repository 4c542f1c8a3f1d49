// What lies side by side is one run, whatever it is kept in; nothing else is.
#include "optim/run.h"

#include "optim/kept.h"
#include "optim/support.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

namespace lockstep::optim {
namespace {

struct Kept {
  at::Tensor values, scales, second, second_scales;
};

std::vector<Slot> slots_of(const std::vector<at::Tensor>& parameters, std::vector<Kept>& kept,
                           StateFormat format) {
  std::vector<Slot> slots = make_slots(parameters, {.update = {.state = format}});
  static at::Tensor no_master;
  kept.resize(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i].master = &no_master;
    slots[i].kept[0] = {&kept[i].values, &kept[i].scales, Codes::with_sign};
    slots[i].kept[1] = {&kept[i].second, &kept[i].second_scales, Codes::without_sign};
  }
  prepare_kept(slots, format);
  return slots;
}

std::vector<std::int64_t> lengths(const std::vector<optim::Run>& runs) {
  std::vector<std::int64_t> lengths;
  for (const optim::Run& run : runs) lengths.push_back(run.count);
  return lengths;
}

using Lengths = std::vector<std::int64_t>;

TEST(Runs, MergeWhatLiesSideBySide) {
  test::FlatParameters flat({{10, 10}, {7}, {0}, {3, 5}});
  std::vector<Kept> kept;
  for (StateFormat format : {StateFormat::float32, StateFormat::bfloat16}) {
    kept.clear();
    auto slots = slots_of(flat.parameters, kept, format);
    EXPECT_EQ(lengths(make_runs(slots)), (Lengths{122}));
  }
}

TEST(Runs, MergeBlocksAtTheirEnds) {
  test::FlatParameters flat({{256}, {512}, {100}, {256}});
  std::vector<Kept> kept;
  auto slots = slots_of(flat.parameters, kept, StateFormat::blocks);
  EXPECT_EQ(lengths(make_runs(slots)), (Lengths{868, 256}));  // 100 elements end inside a block
}

TEST(Runs, KeepApartWhatDiffers) {
  test::FlatParameters flat({{4}, {4}, {4}, {4}, {4}});
  flat.parameters[1].mutable_grad() = torch::zeros({4});  // elsewhere
  std::vector<Kept> kept;
  auto slots = slots_of(flat.parameters, kept, StateFormat::float32);
  slots[4].age = 3;
  EXPECT_EQ(lengths(make_runs(slots)), (Lengths{4, 4, 8, 4}));
}

TEST(Runs, ArePassedOverWithoutHolesInPieces) {
  std::vector<optim::Run> runs(3);
  runs[0].count = 200'000;
  runs[1].count = 1;
  runs[2].count = 65'536;
  std::mutex mutex;
  std::set<std::tuple<std::size_t, std::int64_t, std::int64_t>> pieces;
  for_each_piece(runs, [&](std::size_t run, std::int64_t begin, std::int64_t end) {
    std::lock_guard lock(mutex);
    pieces.emplace(run, begin, end);
  });
  std::vector<std::int64_t> reached(3, 0);
  for (auto [run, begin, end] : pieces) {
    EXPECT_EQ(begin, reached[run]);
    EXPECT_EQ(begin % block_elements, 0);
    reached[run] = end;
  }
  EXPECT_EQ(reached, (Lengths{200'000, 1, 65'536}));
}

TEST(Runs, StandInForParametersWithHoles) {
  at::Tensor base = torch::arange(12.0).view({3, 4});
  at::Tensor parameter = base.slice(1, 0, 4, 2).requires_grad_();
  parameter.mutable_grad() = torch::ones({3, 2});
  auto slots = make_slots({parameter}, {});
  ASSERT_TRUE(slots[0].dense.is_contiguous());
  slots[0].dense.fill_(7);
  at::NoGradGuard no_grad;
  copy_back(slots);
  EXPECT_EQ(parameter.sum().item<float>(), 42);
  EXPECT_EQ(base.select(1, 1).sum().item<float>(), 1 + 5 + 9);
}

}  // namespace
}  // namespace lockstep::optim
