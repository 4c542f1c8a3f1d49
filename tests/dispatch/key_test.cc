// Operations on tensors in a lazy storage come by the key, and owners bring memory.
#include "dispatch/key.h"
#include "dispatch/lazy_storage.h"

#include "support/messages.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep::dispatch {
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

std::shared_ptr<Counter> counter(const at::Tensor& values) {
  auto owner = std::make_shared<Counter>();
  owner->memory = values;
  owner->storage = std::make_unique<LazyStorage>(values.nbytes(), c10::Device(c10::kCPU), owner,
                                                 key(), "it is released");
  return owner;
}

TEST(DispatchKey, BringsMemoryForEachOperationAndNoLonger) {
  at::Tensor values = at::arange(12, at::kFloat);
  auto owner = counter(values);
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

TEST(DispatchKey, ReleasedMemoryIsAClearError) {
  auto owner = counter(at::arange(4, at::kFloat));
  at::Tensor weight = owner->storage->place(at::kFloat, 0, {4}, {1});
  auto read = [&] { (void)weight.data_ptr<float>(); };
  test::expect_words(test::message_of<c10::Error>(read), {"it is released"});
  owner->storage->explain("its owner is gone");
  auto storage = std::move(owner->storage);
  owner.reset();
  test::expect_words(test::message_of<c10::Error>([&] { (void)weight.sum(); }),
                     {"its owner is gone"});
}

TEST(DispatchKey, WhatAnOwnerThrowsTheOperationThrows) {
  auto first = counter(at::ones({4}));
  auto second = counter(at::ones({4}));
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

TEST(DispatchKey, SaysWhatItIs) {
  EXPECT_TRUE(describe_key().starts_with("fallback on "));
  EXPECT_TRUE(describe_key().ends_with(c10::toString(key()))) << describe_key();
}

}  // namespace
}  // namespace lockstep::dispatch
