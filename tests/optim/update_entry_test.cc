// Parameters that are adjacent in memory are one span, in every format; others are not.
#include "optim/update_entry.h"

#include "optim/state_tensors.h"
#include "optim/support.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>

#include <mutex>
#include <set>

namespace lockstep::optim {
namespace {

struct OwnState {
  at::Tensor values, scales, second, second_scales;
};

std::vector<UpdateEntry> entries_of(const std::vector<at::Tensor>& parameters,
                                    std::vector<OwnState>& own, StateFormat format) {
  std::vector<UpdateEntry> entries = make_entries(parameters, {.update = {.state = format}});
  static at::Tensor no_master;
  own.resize(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].master = &no_master;
    entries[i].state[0] = {&own[i].values, &own[i].scales, Codes::with_sign};
    entries[i].state[1] = {&own[i].second, &own[i].second_scales, Codes::without_sign};
  }
  prepare_state(entries, format);
  return entries;
}

std::vector<std::int64_t> lengths(const std::vector<optim::ParameterSpan>& spans) {
  std::vector<std::int64_t> lengths;
  for (const optim::ParameterSpan& span : spans) lengths.push_back(span.count);
  return lengths;
}

using Lengths = std::vector<std::int64_t>;

TEST(Spans, MergeWhatLiesSideBySide) {
  test::FlatParameters flat({{10, 10}, {7}, {0}, {3, 5}});
  std::vector<OwnState> own;
  for (StateFormat format : {StateFormat::float32, StateFormat::bfloat16}) {
    own.clear();
    auto entries = entries_of(flat.parameters, own, format);
    EXPECT_EQ(lengths(make_spans(entries)), (Lengths{122}));
  }
}

TEST(Spans, MergeBlocksAtTheirEnds) {
  test::FlatParameters flat({{256}, {512}, {100}, {256}});
  std::vector<OwnState> own;
  auto entries = entries_of(flat.parameters, own, StateFormat::blockwise);
  EXPECT_EQ(lengths(make_spans(entries)), (Lengths{868, 256}));  // 100 elements end inside a block
}

TEST(Spans, KeepApartWhatDiffers) {
  test::FlatParameters flat({{4}, {4}, {4}, {4}, {4}});
  flat.parameters[1].mutable_grad() = torch::zeros({4});  // in other memory
  std::vector<OwnState> own;
  auto entries = entries_of(flat.parameters, own, StateFormat::float32);
  entries[4].age = 3;
  EXPECT_EQ(lengths(make_spans(entries)), (Lengths{4, 4, 8, 4}));
}

TEST(Spans, ArePassedOverWithoutHolesInPieces) {
  std::vector<optim::ParameterSpan> spans(3);
  spans[0].count = 200'000;
  spans[1].count = 1;
  spans[2].count = 65'536;
  std::mutex mutex;
  std::set<std::tuple<std::size_t, std::int64_t, std::int64_t>> pieces;
  for_each_piece(spans, [&](std::size_t span, std::int64_t begin, std::int64_t end) {
    std::lock_guard lock(mutex);
    pieces.emplace(span, begin, end);
  });
  std::vector<std::int64_t> reached(3, 0);
  for (auto [span, begin, end] : pieces) {
    EXPECT_EQ(begin, reached[span]);
    EXPECT_EQ(begin % block_elements, 0);
    reached[span] = end;
  }
  EXPECT_EQ(reached, (Lengths{200'000, 1, 65'536}));
}

TEST(Spans, StandInForParametersWithHoles) {
  at::Tensor base = torch::arange(12.0).view({3, 4});
  at::Tensor parameter = base.slice(1, 0, 4, 2).requires_grad_();
  parameter.mutable_grad() = torch::ones({3, 2});
  auto entries = make_entries({parameter}, {});
  ASSERT_TRUE(entries[0].dense.is_contiguous());
  entries[0].dense.fill_(7);
  at::NoGradGuard no_grad;
  copy_back(entries);
  EXPECT_EQ(parameter.sum().item<float>(), 42);
  EXPECT_EQ(base.select(1, 1).sum().item<float>(), 1 + 5 + 9);
}

// LibTorch's parameters() lists a tied weight under each of its names.
TEST(UpdateEntries, AParameterThatIsListedTwiceIsNamed) {
  at::Tensor other = at::ones({2}).requires_grad_(), tied = at::ones({3}).requires_grad_();
  for (const at::Tensor& one : {other, tied}) one.mutable_grad() = at::ones_like(one);
  SGD sgd(std::vector{other, tied, tied}, torch::optim::SGDOptions(1));
  try {
    sgd.step();
    ADD_FAILURE() << "expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("parameter 1 of sizes [3] is listed twice"),
              std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(tied.equal(at::ones({3})));
  torch::optim::SGD theirs(std::vector{tied, tied}, torch::optim::SGDOptions(1));
  EXPECT_THROW((void)step_transformed(theirs, {.clip_norm = 1}), InvalidArgument);
}

// A tied weight in the group of the embedding and in that of the head.
TEST(UpdateEntries, AParameterInTwoGroupsIsNamed) {
  at::Tensor other = at::ones({2}).requires_grad_(), tied = at::ones({3}).requires_grad_();
  for (const at::Tensor& one : {other, tied}) one.mutable_grad() = at::ones_like(one);
  const auto expect_refused = [&](torch::optim::Optimizer&& optimizer) {
    try {
      optimizer.step();
      ADD_FAILURE() << "expected an error";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("parameter 1 of sizes [3] is listed twice"),
                std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(tied.equal(at::ones({3})));
  };
  const std::vector<torch::optim::OptimizerParamGroup> groups{
      torch::optim::OptimizerParamGroup({other, tied}), torch::optim::OptimizerParamGroup({tied})};
  expect_refused(SGD(groups, torch::optim::SGDOptions(1)));
  expect_refused(AdamW(groups));
}

}  // namespace
}  // namespace lockstep::optim
