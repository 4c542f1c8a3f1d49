#include "dispatch/thread_generator.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/never_destroyed.h"
#include "base/text.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <mutex>
#include <utility>
#include <vector>

namespace lockstep::dispatch {
namespace {

// A dispatch key for per-thread modes, which LibTorch uses in its tests only.
constexpr auto mode_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local at::Generator* own_generator = nullptr;

// Returns true if the operation computes on the CPU: decided by its tensors, else by its device
// argument.
bool is_on_cpu(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments)
    if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().is_cpu();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (schema.arguments()[i].name() == "device" && arguments[i].isDevice())
      return arguments[i].toDevice().is_cpu();
  return true;
}

void give_generator(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  auto arguments = torch::jit::last(*stack, schema.arguments().size());
  if (own_generator != nullptr && is_on_cpu(schema, arguments)) {
    std::size_t first = stack->size() - schema.arguments().size();
    for (std::size_t i = 0; i < schema.arguments().size(); ++i)
      if (schema.arguments()[i].name() == "generator" && (*stack)[first + i].isNone())
        (*stack)[first + i] = *own_generator;
  }
  operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, mode_key),
                            stack);
}

bool takes_generator(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments())
    if (argument.name() == "generator") return true;
  return false;
}

using Registrations = std::vector<c10::RegistrationHandleRAII>;

Registrations register_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  Registrations made;
  made.push_back(dispatcher.registerFallback(mode_key, c10::KernelFunction::makeFallthrough(),
                                             "lockstep: fall through"));
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto operation = dispatcher.findSchema(name);
    if (!operation || !takes_generator(operation->schema())) continue;
    made.push_back(dispatcher.registerImpl(
        name, mode_key, c10::KernelFunction::makeFromBoxedFunction<&give_generator>(), std::nullopt,
        nullptr, "lockstep: the thread's generator"));
  }
  return made;
}

}  // namespace

void ThreadGenerator::prepare() {
  try {
    static const NeverDestroyed registrations(register_kernels());
  } catch (const c10::Error& error) {
    throw Error(formatted("random numbers of threads: this LibTorch leaves no key for them: {}",
                          first_line(error.what_without_backtrace())));
  }
}

ThreadGenerator::ThreadGenerator(std::uint64_t seed)
    : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)), before_(own_generator) {
  own_generator = &generator_;
  included_.emplace(mode_key);
}

ThreadGenerator::~ThreadGenerator() {
  included_.reset();
  own_generator = before_;
}

void seed_default_generator(c10::Device device, std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace lockstep::dispatch
