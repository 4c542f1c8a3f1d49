// The record of a call that a group hands to its backend.
#include "comm/api/group_state.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {
namespace {

struct SeenCall {
  CallId id;
  std::optional<DType> dtype;
  std::int64_t elements;
};

// One of two ranks. Notes each call and completes it at once.
class NotingBackend : public Backend {
 public:
  explicit NotingBackend(std::vector<SeenCall>& seen) : Backend(1, 2), seen_(seen) {}

  [[nodiscard]] std::string_view name() const override { return "noting"; }
  void post(const Call& call) override {
    if (refuses) throw InvalidArgument("refused");
    seen_.push_back({call.id, call.dtype, call.elements});
  }
  void wait(CallId) override {}
  [[nodiscard]] bool done(CallId) override { return true; }
  [[nodiscard]] std::shared_ptr<Backend> subset(std::span<const int>, std::string_view) override {
    return nullptr;
  }
  void abort(std::string_view) override {}

  bool refuses = false;

 private:
  std::vector<SeenCall>& seen_;
};

class GroupCalls : public testing::Test {
 protected:
  std::vector<SeenCall> seen_;
  std::shared_ptr<NotingBackend> backend_ = std::make_shared<NotingBackend>(seen_);
  Group group_{backend_, "two", std::chrono::seconds(1)};
  at::Tensor part_ = at::empty({3}, at::kInt);
  at::Tensor whole_ = at::empty({6}, at::kInt);

  void expect_last(std::int64_t elements, std::optional<DType> dtype = DType::int32) {
    EXPECT_EQ(seen_.back().elements, elements);
    EXPECT_EQ(seen_.back().dtype, dtype);
  }
};

TEST_F(GroupCalls, CountTheTensorWhoseSizeAllRanksAgreeOn) {
  group_.all_gather(whole_, part_).wait();
  expect_last(6);
  group_.reduce_scatter(part_, whole_).wait();
  expect_last(6);
  group_.scatter(part_, at::Tensor(), 0).wait();
  expect_last(3);
  group_.gather(at::Tensor(), part_, 0).wait();
  expect_last(3);
  group_.send(part_, 0).wait();
  expect_last(3);
  group_.recv(whole_, 0).wait();
  expect_last(6);
  group_.barrier().wait();
  expect_last(0, std::nullopt);
}

TEST_F(GroupCalls, AreNumberedByChannelAndNotIfRefused) {
  group_.barrier().wait();
  backend_->refuses = true;
  EXPECT_THROW((void)group_.barrier(), InvalidArgument);
  backend_->refuses = false;
  group_.send(part_, 0).wait();
  EXPECT_EQ(seen_.back().id, (CallId{{1, 0}, 1}));
  group_.recv(part_, 0).wait();
  EXPECT_EQ(seen_.back().id, (CallId{{0, 1}, 1}));
  group_.all_reduce(part_).wait();
  EXPECT_EQ(seen_.back().id, (CallId{{}, 2}));
}

}  // namespace
}  // namespace lockstep
