#include "layout/flat_layout.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

namespace lockstep::layout {
namespace {

TensorSpec spec(std::string name, std::vector<std::int64_t> sizes, const void* identity = nullptr) {
  return {std::move(name), std::move(sizes), {}, identity};
}

std::vector<std::int64_t> offsets(const FlatLayout& layout) {
  std::vector<std::int64_t> all;
  for (const FlatEntry& entry : layout.entries()) all.push_back(entry.offset);
  return all;
}

TEST(FlatLayout, PlacesTensorsOneAfterAnotherAligned) {
  std::vector<TensorSpec> tensors = {spec("a", {3, 4}), spec("b", {4}), spec("scalar", {}),
                                     spec("c", {5})};
  FlatLayout layout(tensors, {.alignment = 16, .multiple = 8});
  EXPECT_EQ(offsets(layout), (std::vector<std::int64_t>{0, 12, 16, 20}));
  EXPECT_EQ(layout.numel(), 32);
  EXPECT_EQ(layout.used(), 22);
  EXPECT_EQ(layout.bytes(), 128);
}

TEST(FlatLayout, PacksWithoutGapsWhenAskedTo) {
  std::vector<TensorSpec> tensors = {spec("a", {3}), spec("b", {5}), spec("c", {1})};
  FlatLayout layout(tensors, {.alignment = 1});
  EXPECT_EQ(offsets(layout), (std::vector<std::int64_t>{0, 3, 8}));
  EXPECT_EQ(layout.numel(), 9);
}

TEST(FlatLayout, AlignsBytesWhateverTheDtype) {
  for (Dtype dtype : {Dtype{"BFloat16", 2}, {"Float", 4}, {"Double", 8}, {"ComplexDouble", 16}}) {
    std::vector<TensorSpec> tensors = {{"a", {3}, dtype}, {"b", {3}, dtype}};
    FlatLayout layout(tensors);
    EXPECT_EQ(layout.dtype(), dtype);
    EXPECT_EQ(layout.entry(1).offset * dtype.bytes, 64) << dtype.name;
  }
}

TEST(FlatLayout, TiedTensorsShareOnePlace) {
  int weight = 0;
  std::vector<TensorSpec> tensors = {spec("e.weight", {4, 4}, &weight), spec("b", {4}),
                                     spec("h.weight", {4, 4}, &weight)};
  FlatLayout layout(tensors, {.alignment = 4});
  EXPECT_EQ(offsets(layout), (std::vector<std::int64_t>{0, 16, 0}));
  EXPECT_FALSE(layout.entry(0).tied);
  EXPECT_TRUE(layout.entry(2).tied);
  EXPECT_EQ(layout.used(), 20);
  EXPECT_EQ(layout.slices_in({0, layout.numel()}).size(), 2U);
}

TEST(FlatLayout, TakesTensorsWithoutElementsAndNoTensorsAtAll) {
  std::vector<TensorSpec> tensors = {spec("none", {0, 7}), spec("a", {2}), spec("none too", {0})};
  FlatLayout layout(tensors, {.alignment = 4});
  EXPECT_EQ(offsets(layout), (std::vector<std::int64_t>{0, 0, 2}));
  EXPECT_EQ(layout.numel(), 2);
  EXPECT_EQ(layout.slices_in({0, 2}).size(), 1U);
  EXPECT_EQ(FlatLayout({}, {.multiple = 5}).numel(), 0);
}

TEST(FlatLayout, ShardsTogetherHoldEveryElementOnce) {
  std::vector<TensorSpec> tensors = {spec("a", {3, 5}), spec("b", {0}), spec("c", {7}),
                                     spec("d", {}), spec("e", {2, 2, 2})};
  for (int world = 1; world <= 9; ++world) {
    FlatLayout layout(tensors, {.alignment = 8, .multiple = world});
    std::vector<std::vector<int>> seen;
    for (const FlatEntry& entry : layout.entries()) seen.emplace_back(entry.numel, 0);
    for (int rank = 0; rank < world; ++rank) {
      Range range = shard_range(layout.numel(), world, rank);
      for (const FlatSlice& slice : layout.slices_in(range)) {
        EXPECT_EQ(range.begin + slice.offset,
                  layout.entry(slice.entry).offset + slice.of_tensor.begin);
        for (std::int64_t i = slice.of_tensor.begin; i < slice.of_tensor.end; ++i)
          ++seen[slice.entry][i];
      }
    }
    for (const auto& tensor : seen)
      for (int times : tensor) EXPECT_EQ(times, 1) << world << " ranks";
  }
}

// More than 7 * 2^31 elements: offsets do not fit in 32 bits.
TEST(FlatLayout, LaysOutMoreThan32BitsCount) {
  constexpr std::int64_t large = (std::int64_t{1} << 31) + 1;
  std::vector<TensorSpec> tensors = {spec("a", {large}), spec("b", {3, large}), spec("c", {5}),
                                     spec("d", {large, 3})};
  for (int world : {1, 2, 3, 7, 1000}) {
    FlatLayout layout(tensors, {.alignment = 64, .multiple = world});
    EXPECT_EQ(layout.entry(1).offset, large + 15);
    EXPECT_EQ(layout.used(), 7 * large + 5);
    EXPECT_EQ(layout.bytes(), 4 * layout.numel());
    std::vector<std::int64_t> found(tensors.size(), 0);  // elements of each tensor
    for (int rank = 0; rank < world; ++rank) {
      Range range = shard_range(layout.numel(), world, rank);
      for (const FlatSlice& slice : layout.slices_in(range)) {
        EXPECT_EQ(slice.of_tensor.begin, found[slice.entry]);
        found[slice.entry] = slice.of_tensor.end;
        EXPECT_EQ(range.begin + slice.offset,
                  layout.entry(slice.entry).offset + slice.of_tensor.begin);
      }
    }
    EXPECT_EQ(found, (std::vector<std::int64_t>{large, 3 * large, 5, 3 * large}));
  }
}

TEST(FlatLayout, RefusesWhatCannotShareAStorage) {
  int weight = 0;
  std::vector<TensorSpec> dtypes = {{"a", {2}, {"Half", 2}}, {"b", {2}, {"BFloat16", 2}}};
  EXPECT_THROW(FlatLayout{dtypes}, InvalidArgument);
  std::vector<TensorSpec> sizes = {spec("a", {2, 3}, &weight), spec("b", {3, 2}, &weight)};
  EXPECT_THROW(FlatLayout{sizes}, InvalidArgument);
  std::vector<TensorSpec> negative = {spec("a", {2, -1})};
  EXPECT_THROW(FlatLayout{negative}, InvalidArgument);
  std::vector<TensorSpec> large = {spec("a", {std::int64_t{1} << 40, std::int64_t{1} << 40})};
  EXPECT_THROW(FlatLayout{large}, InvalidArgument);
  std::vector<TensorSpec> fine = {spec("a", {2})};
  EXPECT_THROW(FlatLayout(fine, {.alignment = 6}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::layout
