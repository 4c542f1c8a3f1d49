// Operations on tensors in a lazy storage reach our dispatch key, and owners provide the memory.
#include "dispatch/key.h"
#include "dispatch/lazy_storage.h"

#include "support/messages.h"

#include <lockstep/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

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

// PyTorch's fake tensors in C++ have the dispatch key Fake, for which is_fake() is true.
TEST(DispatchKey, IsNotTheOneOfFakeTensors) {
  auto owner = counter(at::ones({4}));
  at::Tensor weight = owner->storage->place(at::kFloat, 0, {4}, {1});
  EXPECT_TRUE(weight.key_set().has(key()));
  EXPECT_FALSE(weight.key_set().has(c10::DispatchKey::Fake));
}

struct OtherLayout {
  std::string name;
  at::Tensor operand;  // 2 x 2
};

std::vector<OtherLayout> other_layouts() {
  const at::Tensor dense = at::eye(2) * 3;
  std::vector<OtherLayout> layouts = {
      {"sparse", dense.to_sparse()},
      {"compressed sparse", dense.to_sparse_csr()},
      {"compressed sparse", dense.to_sparse_csc()},
      {"nested", at::_nested_tensor_from_tensor_list({dense[0], dense[1]})}};
  if (at::hasMKLDNN()) layouts.push_back({"oneDNN", dense.to_mkldnn()});
  return layouts;
}

void expect_refusal(const std::string& layout, const std::string& operation,
                    const std::function<void()>& action) {
  const std::string text = test::message_of<InvalidArgument>(action);
  test::expect_words(text, {operation + ": a " + layout + " tensor beside a global, sharded",
                            "make it dense first"});
  EXPECT_FALSE(test::contains(text, "\n")) << text;
}

// These layouts have higher dispatch keys than ours. With attached memory, the operation could read
// it and write to it without notice.
TEST(DispatchKey, RefusesOperandsInAnotherLayout) {
  for (const bool is_attached : {false, true}) {
    auto owner = counter(at::ones({4}));
    at::Tensor weight = owner->storage->place(at::kFloat, 0, {2, 2}, {2, 1});
    if (is_attached) owner->storage->attach(owner->memory);
    for (const auto& [name, operand] : other_layouts()) {
      expect_refusal(name, "aten::add_", [&] { weight.add_(operand); });
      expect_refusal(name, "aten::mul", [&] { (void)at::mul(operand, weight); });
      EXPECT_EQ(owner->writes + owner->pinned, 0);
    }
    const at::Tensor sparse = at::eye(2).to_sparse();
    expect_refusal("sparse", "aten::mm", [&] { (void)at::mm(sparse, weight); });
    expect_refusal("sparse", "aten::cat", [&] { (void)at::cat({sparse, weight}); });
    expect_refusal("sparse", "aten::copy_", [&] { weight.copy_(sparse); });
    EXPECT_TRUE(owner->memory.equal(at::ones({4})));
  }
}

TEST(DispatchKey, LeavesOtherLayoutsAlone) {
  static_cast<void>(key());
  const at::Tensor dense = at::arange(4, at::kFloat).view({2, 2});
  for (const at::Tensor& operand : {dense.to_sparse(), dense.to_sparse_csr()}) {
    EXPECT_TRUE(at::mm(operand, dense).equal(at::mm(dense, dense)));
    EXPECT_TRUE(at::add(operand, operand).to_dense().equal(dense + dense));
    EXPECT_TRUE(operand.sum().equal(dense.sum()));
  }
  if (at::hasMKLDNN()) {
    at::Tensor operand = dense.to_mkldnn();
    EXPECT_TRUE(at::add(operand, operand).to_dense().equal(dense + dense));
    operand.set_data((2 * dense).to_mkldnn());
    EXPECT_TRUE(operand.to_dense().equal(2 * dense));
  }
  at::Tensor sum = dense.clone();
  sum.add_(dense.to_sparse(), 2);
  EXPECT_TRUE(sum.equal(3 * dense));
  at::Tensor leaf = dense.clone().requires_grad_();
  at::mm(dense.to_sparse(), leaf).sum().backward();
  EXPECT_TRUE(leaf.grad().equal(at::mm(dense.t(), at::ones({2, 2}))));
}

at::Tensor doubled(const at::Tensor& tensor) { return tensor + tensor; }

// An operation that is registered for all backends has no kernel of ours, but calls operations that
// have one.
TEST(DispatchKey, BringsMemoryForOperationsThatAreDefinedLater) {
  auto owner = counter(at::ones({4}));
  at::Tensor weight = owner->storage->place(at::kFloat, 0, {4}, {1});
  torch::Library library(torch::Library::FRAGMENT, "lockstep_test_late", std::nullopt, __FILE__,
                         __LINE__);
  library.def("of_cpu(Tensor tensor) -> Tensor");
  library.impl("of_cpu", c10::DispatchKey::CPU, TORCH_FN(doubled));
  library.def("of_all(Tensor tensor) -> Tensor");
  library.impl("of_all", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(doubled));
  const auto call = [&](const std::string& name) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(("lockstep_test_late::" + name).c_str(), "")
        .typed<at::Tensor(const at::Tensor&)>()
        .call(weight);
  };
  EXPECT_TRUE(call("of_cpu").equal(at::full({4}, 2.0)));
  EXPECT_EQ(owner->last, "lockstep_test_late::of_cpu");
  EXPECT_TRUE(call("of_all").equal(at::full({4}, 2.0)));
  EXPECT_EQ(owner->last, "aten::add");
  EXPECT_EQ(owner->pinned, 0);
}

TEST(DispatchKey, QuantizedOperandsComeWithOurs) {
  auto owner = counter(at::ones({4}));
  at::Tensor weight = owner->storage->place(at::kFloat, 0, {4}, {1});
  const at::Tensor quantized = at::quantize_per_tensor(at::ones({4}), 0.5, 0, at::kQInt8);
  quantized.copy_(weight * 2);
  weight.copy_(quantized.dequantize());
  EXPECT_EQ(owner->writes, 1);
  EXPECT_TRUE(owner->memory.equal(at::full({4}, 2.0)));
}

}  // namespace
}  // namespace lockstep::dispatch
