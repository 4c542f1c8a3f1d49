#include "dispatch/key_self_test.h"

#include "dispatch/lazy_storage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <stdexcept>

namespace lockstep::dispatch {
namespace {

// Brings memory when asked, and takes it away after every operation.
class TestOwner final : public StorageOwner {
 public:
  void pin(const StorageUse&) override {
    ++pins;
    storage->attach(memory);
  }
  void written() override { ++writes; }
  void unpin() noexcept override { storage->detach(); }

  at::Tensor memory;
  std::optional<LazyStorage> storage;
  int pins = 0;
  int writes = 0;
};

std::string first_wrong(TestOwner& owner, const at::Tensor& weight, const at::Tensor& plain) {
  at::Tensor input = at::arange(6, at::kFloat).view({2, 3});
  auto loss = [&](const at::Tensor& w) {
    return (at::mm(input, w.t()).sum() + w.narrow(0, 1, 2).square().sum());
  };
  at::Tensor expected = loss(plain), found = loss(weight);
  if (owner.pins == 0) return "operations do not pass it";
  if (!expected.equal(found)) return "an operation gave another value";
  expected.backward();
  found.backward();
  if (!weight.grad().defined() || !weight.grad().equal(plain.grad()))
    return "backward gave another gradient";
  at::NoGradGuard no_grad;
  weight.view({-1}).narrow(0, 2, 3).mul_(2);
  plain.view({-1}).narrow(0, 2, 3).mul_(2);
  if (owner.writes != 1) return "a write was not announced";
  if (!owner.memory.view({4, 3}).equal(plain.detach())) return "a write did not arrive";
  try {
    (void)weight.const_data_ptr();
  } catch (const std::exception&) {
    return "";
  }
  return "released memory can be read";
}

}  // namespace

std::string try_key(c10::DispatchKey key) {
  try {
    at::AutoGradMode with_grad(true);
    auto owner = std::make_shared<TestOwner>();
    owner->memory = at::arange(12, at::kFloat);
    owner->storage.emplace(48, c10::Device(c10::kCPU), owner, key, "released");
    at::Tensor plain = owner->memory.clone().view({4, 3}).requires_grad_();
    at::Tensor weight = at::ones({4, 3});
    weight.set_data(owner->storage->place(at::kFloat, 0, {4, 3}, {3, 1}));
    weight.requires_grad_();
    return first_wrong(*owner, weight, plain);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace lockstep::dispatch
