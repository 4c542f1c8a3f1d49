// Both ways in, side by side in one process.
#include <lockstep/shard/lazy_storage.h>
#include <lockstep/shard/trigger.h>

#include "support/messages.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep::shard {
namespace {

class Counter final : public StorageOwner {
 public:
  void pin(const StorageUse& use) override {
    if (refuse) throw std::runtime_error("refused");
    ++pinned;
    last = std::string(use.operation);
    last_offset = use.offset;
    storage->attach(memory);
  }
  void written() override { ++writes; }
  void unpin() noexcept override {
    --pinned;
    storage->detach();
  }

  at::Tensor memory;
  std::unique_ptr<LazyStorage> storage;
  std::string last;
  std::int64_t last_offset = 0;
  int pinned = 0;
  int writes = 0;
  bool refuse = false;
};

std::shared_ptr<Counter> counter(TriggerKind kind, const at::Tensor& values) {
  auto owner = std::make_shared<Counter>();
  owner->memory = values;
  owner->storage = std::make_unique<LazyStorage>(values.nbytes(), c10::Device(c10::kCPU), owner,
                                                 trigger_key(kind), "it is released");
  return owner;
}

class Trigger : public testing::TestWithParam<TriggerKind> {};

TEST_P(Trigger, BringsMemoryForEachOperationAndNoLonger) {
  at::Tensor values = at::arange(12, at::kFloat);
  auto owner = counter(GetParam(), values);
  at::Tensor weight = owner->storage->place(at::kFloat, 4, {4, 2}, {2, 1});
  EXPECT_TRUE(is_lazy(weight));
  EXPECT_TRUE(owner->storage->holds(weight));
  EXPECT_FALSE(owner->storage->holds(values));
  EXPECT_EQ(weight.sum().item<float>(), values.narrow(0, 4, 8).sum().item<float>());
  EXPECT_EQ(owner->last, "aten::sum");
  EXPECT_EQ(owner->last_offset, 4);
  EXPECT_EQ(owner->pinned, 0);
  at::Tensor view = weight.t().chunk(2)[1];
  EXPECT_TRUE(is_lazy(view));
  EXPECT_FALSE(is_lazy(view.clone()));
  EXPECT_TRUE(view.clone().equal(values.narrow(0, 4, 8).view({4, 2}).t().chunk(2)[1]));
  EXPECT_EQ(owner->writes, 0);
  at::_foreach_mul_(std::vector<at::Tensor>{weight, view}, 2);
  EXPECT_EQ(owner->writes, 1);
  EXPECT_EQ(values[4].item<float>(), 8);
}

TEST_P(Trigger, ReleasedMemoryIsAClearError) {
  auto owner = counter(GetParam(), at::arange(4, at::kFloat));
  at::Tensor weight = owner->storage->place(at::kFloat, 0, {4}, {1});
  auto read = [&] { (void)weight.data_ptr<float>(); };
  test::expect_words(test::message_of<c10::Error>(read), {"it is released"});
  owner->storage->explain("its owner is gone");
  auto storage = std::move(owner->storage);
  owner.reset();
  test::expect_words(test::message_of<c10::Error>([&] { (void)weight.sum(); }),
                     {"its owner is gone"});
}

TEST_P(Trigger, WhatAnOwnerThrowsTheOperationThrows) {
  auto first = counter(GetParam(), at::ones({4}));
  auto second = counter(GetParam(), at::ones({4}));
  at::Tensor a = first->storage->place(at::kFloat, 0, {4}, {1});
  at::Tensor b = second->storage->place(at::kFloat, 0, {4}, {1});
  second->refuse = true;
  EXPECT_THROW((void)(a + b), std::runtime_error);
  EXPECT_EQ(first->pinned, 0);
  second->refuse = false;
  EXPECT_EQ((a + b).sum().item<float>(), 8);
  EXPECT_THROW(a.view({2, 2}).mm(b), c10::Error);
  EXPECT_EQ(first->pinned + second->pinned, 0);
}

INSTANTIATE_TEST_SUITE_P(BothWays, Trigger,
                         testing::Values(TriggerKind::fallback, TriggerKind::operations),
                         [](const auto& info) {
                           return info.param == TriggerKind::fallback ? "fallback" : "operations";
                         });

TEST(TriggerKey, SaysWhatItIs) {
  EXPECT_NE(trigger_key(TriggerKind::fallback), trigger_key(TriggerKind::operations));
  EXPECT_TRUE(describe_trigger(TriggerKind::fallback).starts_with("fallback on "));
  EXPECT_TRUE(describe_trigger(TriggerKind::operations).starts_with("operations on "));
  // The first that works, which is the fallback in every LibTorch that is supported.
  EXPECT_EQ(trigger_key(), trigger_key(TriggerKind::fallback));
  EXPECT_EQ(describe_trigger(), describe_trigger(TriggerKind::fallback));
}

}  // namespace
}  // namespace lockstep::shard
