#include "dispatch/key.h"

#include "base/format.h"
#include "comm/backend/only_copy.h"
#include "dispatch/call.h"
#include "dispatch/each_tensor.h"
#include "dispatch/key_self_test.h"

#include <lockstep/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::dispatch {
namespace {

using c10::DispatchKey;
using c10::KernelFunction;
using c10::OperatorHandle;

// Destroying them unregisters our functions.
using Registrations = std::vector<c10::RegistrationHandleRAII>;

struct Layout {
  DispatchKey functionality;
  const char* name;
};

constexpr Layout other_layouts[] = {{DispatchKey::Sparse, "sparse"},
                                    {DispatchKey::SparseCsr, "compressed sparse"},
                                    {DispatchKey::NestedTensor, "nested"},
                                    {DispatchKey::MkldnnCPU, "oneDNN"}};
constexpr c10::BackendComponent devices[] = {c10::BackendComponent::CPUBit,
                                             c10::BackendComponent::CUDABit};

// Takes the place of a kernel of LibTorch for tensors in another layout, and calls it unless one of
// ours is among the arguments.
class RefuseBeside final : public c10::OperatorKernel {
 public:
  RefuseBeside(c10::SafeKernelFunction kernel, const char* layout)
      : kernel_(std::move(kernel)), layout_(layout) {}

  void operator()(const OperatorHandle& operation, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    // A thread may include the key without such a tensor, and excludes it inside our function.
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

// LibTorch warns once per process when a kernel takes the place of another.
class NoWarnings final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// The number of arguments that are tensors. A list may hold several, and counts twice.
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

  // An operation that is made of others comes as these, unless a device has a kernel for it.
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

// A kernel that LibTorch makes for all backends (CompositeExplicitAutograd) wins over the fallback
// for a key, so a fallback alone would not see cat() or native_layer_norm().
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

// Registers our functions and tries the key. Returns why it does not work; if it works, returns an
// empty text and keeps the registrations.
std::string take_key() {
  c10::InferenceMode off(false);
  try {
    Registrations made = register_all();
    std::string wrong = try_key();
    if (wrong.empty()) {
      // Tensors of any handle may still have the key when the process ends.
      static const auto* kept = new Registrations(std::move(made));
      static_cast<void>(kept);
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
