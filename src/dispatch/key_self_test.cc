#include "dispatch/key_self_test.h"

#include "base/format.h"
#include "dispatch/key.h"
#include "dispatch/lazy_storage.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace lockstep::dispatch {
namespace {

// Brings memory when asked, and takes it away after every operation.
class TestOwner final : public StorageOwner {
 public:
  void pin(const StorageUse& use) override {
    ++pins;
    last = use.operation;
    storage->attach(memory);
  }
  void written() override { ++writes; }
  void unpin() noexcept override { storage->detach(); }

  at::Tensor memory;
  std::optional<LazyStorage> storage;
  std::string last;  // operation
  int pins = 0;
  int writes = 0;
};

at::Tensor twice(const at::Tensor& tensor) { return tensor + tensor; }

// An operation of a library that was loaded after our function was registered.
class LateOperation {
 public:
  LateOperation() {
    library_.def("twice(Tensor tensor) -> Tensor");
    library_.impl("twice", c10::DispatchKey::CPU, TORCH_FN(twice));
  }
  at::Tensor operator()(const at::Tensor& tensor) const {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("lockstep_self_test::twice", "")
        .typed<at::Tensor(const at::Tensor&)>()
        .call(tensor);
  }

 private:
  torch::Library library_{torch::Library::FRAGMENT, "lockstep_self_test", std::nullopt, __FILE__,
                          __LINE__};
};

// Each kind of operation comes as itself, and not as operations that LibTorch makes it of.
std::string first_kind_wrong(const TestOwner& owner, const at::Tensor& weight,
                             const at::Tensor& plain) {
  const LateOperation late;
  struct Kind {
    const char* operation;
    std::function<at::Tensor(const at::Tensor&)> run;
  };
  const Kind kinds[] = {
      // A kernel for all backends.
      {"aten::cat",
       [](const at::Tensor& w) {
         return at::cat({w, w});
       }},
      // A kernel for all backends above autograd, and one for the CPU.
      {"aten::silu_backward", [](const at::Tensor& w) { return at::silu_backward(w, w); }},
      {"lockstep_self_test::twice", [&](const at::Tensor& w) { return late(w); }}};
  at::NoGradGuard no_grad;
  for (const auto& [operation, run] : kinds) {
    if (!run(weight).equal(run(plain))) return formatted("{} gave another value", operation);
    (void)run(weight);
    if (owner.last != operation)
      return formatted("expected {}, found {} in its place", operation, owner.last);
  }
  return "";
}

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
  if (std::string wrong = first_kind_wrong(owner, weight, plain); !wrong.empty()) return wrong;
  try {
    (void)weight.const_data_ptr();
  } catch (const std::exception&) {
    return "";
  }
  return "released memory can be read";
}

}  // namespace

std::string try_key() {
  try {
    at::AutoGradMode with_grad(true);
    auto owner = std::make_shared<TestOwner>();
    owner->memory = at::arange(12, at::kFloat);
    owner->storage.emplace(48, c10::Device(c10::kCPU), owner, our_key, "released");
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
