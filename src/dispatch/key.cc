#include "dispatch/key.h"

#include "base/format.h"
#include "base/never_destroyed.h"
#include "comm/init/init.h"
#include "dispatch/call.h"
#include "dispatch/deferred_init/recorder.h"
#include "dispatch/devices.h"
#include "dispatch/lazy_storage.h"
#include "dispatch/part.h"
#include "dispatch/recompute/activation_checkpoint_state.h"

#include <lockstep/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu_backward.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::dispatch {
namespace {

DispatchDelegate* delegate_in(const c10::IValue& value, c10::DispatchKey key) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? delegate_of(*tensor.unsafeGetTensorImpl(), key) : nullptr;
  }
  if (!value.isList()) return nullptr;
  for (const c10::IValue& element : value.toListRef()) {
    if (!element.isTensor() && !element.isNone()) return nullptr;
    if (DispatchDelegate* found = delegate_in(element, key)) return found;
  }
  return nullptr;
}

}  // namespace

void run_by_delegate(Call& call) {
  if (call.kind() == Call::Kind::query) return call.proceed();
  for (const c10::IValue& argument :
       torch::jit::last(call.stack(), call.operation().schema().arguments().size()))
    if (DispatchDelegate* delegate = delegate_in(argument, call.key())) return delegate->run(call);
  call.proceed();
}

namespace {

// From the outermost to the innermost. On a thread that records, the recorder decides whether the
// other interceptors run. Blocks are recorded before delegates, so that they contain the program's
// operations and not the delegates'. Operations that a delegate runs are intercepted again. Memory
// is provided last, for operations that really run.
constexpr Interceptor interceptors[] = {&record_operation, &record_block, &run_by_delegate,
                                        &check_parts, &bring_memory};

Call::Kind kind_of(const c10::FunctionSchema& schema) {
  // Some backends answer the query of set_data() themselves.
  if (schema.name() == "aten::_has_compatible_shallow_copy_type") return Call::Kind::query;
  if (schema.returns().empty()) return Call::Kind::compute;
  const c10::Argument& result = schema.returns().front();
  bool is_view = result.alias_info() != nullptr && !is_written(result);
  return is_view ? Call::Kind::view : Call::Kind::compute;
}

}  // namespace

Call::Call(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack& stack)
    : operation_(operation), keys_(keys), stack_(stack), kind_(kind_of(operation.schema())) {}

void Call::proceed() {
  if (next_ < std::size(interceptors)) return interceptors[next_++](*this);
  // Some operations return either a view or a copy; the copy inside arrives here again.
  if (kind_ != Kind::compute) return redispatch();
  const c10::impl::ExcludeDispatchKeyGuard without_our_keys(
      c10::DispatchKeySet({our_key, factory_key}));
  redispatch();
}

void Call::redispatch() {
  // The highest key is the one of our keys through which the call arrived.
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, keys_.highestPriorityTypeId());
  operation_.redispatchBoxed(keys_ & below, &stack_);
}

void intercept(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
               torch::jit::Stack* stack) {
  Call call(operation, keys, *stack);
  call.proceed();
}

namespace {

// Provides memory on request, and releases it after every operation.
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

// An operation of a library that is loaded after our function was registered.
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

// Checks that each kind of operation arrives as a whole, not decomposed by LibTorch.
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

namespace {

using c10::DispatchKey;
using c10::KernelFunction;
using c10::OperatorHandle;

// The destructors unregister our functions.
using Registrations = std::vector<c10::RegistrationHandleRAII>;

struct Layout {
  DispatchKey functionality;
  const char* name;
};

constexpr Layout other_layouts[] = {{DispatchKey::Sparse, "sparse"},
                                    {DispatchKey::SparseCsr, "compressed sparse"},
                                    {DispatchKey::NestedTensor, "nested"},
                                    {DispatchKey::MkldnnCPU, "oneDNN"}};

// Replaces a kernel of LibTorch for tensors of another layout, and calls it unless one of our
// tensors is among the arguments.
class RefuseBeside final : public c10::OperatorKernel {
 public:
  RefuseBeside(c10::SafeKernelFunction kernel, const char* layout)
      : kernel_(std::move(kernel)), layout_(layout) {}

  void operator()(const OperatorHandle& operation, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    // The key may come from the thread's include set (DeferredInit) instead of a tensor.
    if (keys.has(our_key)) {
      const std::size_t count = operation.schema().arguments().size();
      for (const c10::IValue& argument : torch::jit::last(*stack, count))
        for_each_tensor_in(argument, [&](const c10::TensorImpl& tensor) {
          if (tensor.key_set().has(our_key)) refuse(operation);
        });
    }
    kernel_.callBoxed(operation, keys, stack);
  }

 private:
  [[noreturn]] void refuse(const OperatorHandle& operation) const {
    throw InvalidArgument(formatted(
        "{}: a {} tensor beside a global, sharded, deferred or recomputed one is not supported: "
        "make it dense first, by to_dense()",
        operation.schema().name(), layout_));
  }

  c10::SafeKernelFunction kernel_;
  const char* layout_;
};

// Suppresses LibTorch's warning, once per process, that a kernel replaces another.
class NoWarnings final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Returns the number of tensor arguments. A list counts as two, because it may hold several.
int count_tensors(const c10::FunctionSchema& schema) {
  const auto is_tensor = [](const c10::Type& type) {
    return type.isSubtypeOf(*c10::OptionalType::ofTensor());
  };
  int count = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (is_tensor(*argument.type())) ++count;
    const auto list = argument.type()->cast<c10::ListType>();
    if (list && is_tensor(*list->getElementType())) count += 2;
  }
  return count;
}

// The kernels of one operation.
class Kernels {
 public:
  Kernels(const OperatorHandle& operation, Registrations& made)
      : operation_(operation), made_(made) {}

  void add() {
    if (comes_whole()) add(our_key, KernelFunction::makeFromBoxedFunction<&intercept>());
    const int tensors = count_tensors(operation_.schema());
    if (tensors == 0 && has(DispatchKey::BackendSelect))
      add(factory_key, KernelFunction::makeFromBoxedFunction<&intercept>());
    if (tensors < 2) return;
    for (const Layout& layout : other_layouts) {
      if (!c10::isPerBackendFunctionalityKey(layout.functionality)) {
        guard(layout.functionality, layout);
        continue;
      }
      for (const c10::BackendComponent device : devices)
        guard(c10::toRuntimePerBackendFunctionalityKey(layout.functionality, device), layout);
    }
  }

 private:
  [[nodiscard]] bool has(DispatchKey key) const { return operation_.hasKernelForDispatchKey(key); }

  // Returns true if the operation arrives as a whole. Composite operations arrive as the operations
  // that they consist of, unless a device has its own kernel for them.
  [[nodiscard]] bool comes_whole() const {
    return !has(DispatchKey::CompositeImplicitAutograd) || has(DispatchKey::CPU) ||
           has(DispatchKey::CUDA) || has(DispatchKey::PrivateUse1);
  }

  void guard(DispatchKey key, const Layout& layout) {
    if (!has(key)) return;
    add(key, KernelFunction::makeFromBoxedFunctor(std::make_unique<RefuseBeside>(
                 operation_.getComputedKernelForDispatchKey(key), layout.name)));
  }

  void add(DispatchKey key, KernelFunction kernel) {
    made_.push_back(c10::Dispatcher::singleton().registerImpl(
        operation_.operator_name(), key, std::move(kernel), std::nullopt, nullptr, "lockstep"));
  }

  const OperatorHandle& operation_;
  Registrations& made_;
};

// A kernel that LibTorch registers for all backends (CompositeExplicitAutograd) takes precedence
// over the fallback for a key, so a fallback alone would miss cat() or native_layer_norm().
Registrations register_all() {
  NoWarnings none;
  const c10::WarningUtils::WarningHandlerGuard guard(&none);
  auto& dispatcher = c10::Dispatcher::singleton();
  Registrations made;
  made.push_back(dispatcher.registerFallback(
      our_key, KernelFunction::makeFromBoxedFunction<&intercept>(), "lockstep"));
  made.push_back(
      dispatcher.registerFallback(factory_key, KernelFunction::makeFallthrough(), "lockstep"));
  for (const c10::OperatorName& name : dispatcher.getAllOpNames())
    if (const auto operation = dispatcher.findSchema(name)) Kernels(*operation, made).add();
  return made;
}

// Registers our functions and tests the key. If it does not work, returns the reason; otherwise
// keeps the registrations and returns an empty text.
std::string take_key() {
  c10::InferenceMode off(false);
  try {
    Registrations made = register_all();
    std::string wrong = try_key();
    if (wrong.empty()) {
      // Tensors of some handles may still have the key when the process ends.
      static const NeverDestroyed kept(std::move(made));
    }
    return wrong;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    return std::string(text.substr(0, text.find('\n')));
  }
}

}  // namespace

DispatchKey key() {
  check_only_copy();
  static const std::string wrong = take_key();
  if (wrong.empty()) return our_key;
  throw Error(formatted(
      "sharded parameters: this LibTorch leaves no dispatch key for them; tried {}: {}; use a "
      "LibTorch of a version that Lockstep supports, without an extension that takes this key",
      c10::toString(our_key), wrong));
}

}  // namespace lockstep::dispatch
