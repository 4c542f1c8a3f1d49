#include <lockstep/shard/trigger.h>

#include "shard/trigger_function.h"
#include "shard/trigger_test_run.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::shard {
namespace {

using c10::DispatchKey;

// Below autograd, so that it sees what kernels see; LibTorch 2.11 to 2.13 register nothing there.
constexpr DispatchKey fallback_candidates[] = {DispatchKey::Fake};
// Backends whose kernels are in no build that also has ours.
constexpr DispatchKey operation_candidates[] = {DispatchKey::FPGA, DispatchKey::Vulkan,
                                                DispatchKey::Metal};

bool takes_a_tensor(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments())
    if (argument.type()->str().find("Tensor") != std::string::npos) return true;
  return false;
}

// A registered key; unregistered again with this object.
struct Registration {
  DispatchKey key;
  c10::RegistrationHandleRAII fallback;
  std::unique_ptr<torch::Library> operations;
};

// Kernels for all backends come before a fallback: each of their operations gets the function.
std::unique_ptr<torch::Library> register_operations(DispatchKey key) {
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    auto operation = dispatcher.findOp(name);
    if (!operation || !operation->hasSchema() || !takes_a_tensor(operation->schema())) continue;
    if (!operation->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
        !operation->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional))
      continue;
    std::string full =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_with_memory>());
  }
  return library;
}

Registration register_key(DispatchKey key, TriggerKind kind) {
  auto fallback = c10::Dispatcher::singleton().registerFallback(
      key, c10::KernelFunction::makeFromBoxedFunction<&run_with_memory>(), "lockstep");
  return {key, std::move(fallback),
          kind == TriggerKind::operations ? register_operations(key) : nullptr};
}

struct Outcome {
  std::optional<Registration> registration;
  std::string tried;  // "Fake: it is taken"
};

Outcome find_key(TriggerKind kind, std::span<const DispatchKey> candidates) {
  c10::InferenceMode off(false);
  Outcome outcome;
  for (DispatchKey key : candidates) {
    std::string wrong;
    try {
      Registration registration = register_key(key, kind);
      wrong = try_key(key);
      if (wrong.empty()) {
        outcome.registration.emplace(std::move(registration));
        return outcome;
      }
    } catch (const std::exception& error) {
      std::string_view text = error.what();
      wrong = text.substr(0, text.find('\n'));
    }
    if (!outcome.tried.empty()) outcome.tried += "; ";
    outcome.tried += formatted("{}: {}", c10::toString(key), wrong);
  }
  return outcome;
}

// Made once and kept: tensors of any handle may still have the key when the process ends.
const Outcome& outcome_of(TriggerKind kind) {
  if (kind == TriggerKind::fallback) {
    static const auto* fallback = new Outcome(find_key(kind, fallback_candidates));
    return *fallback;
  }
  static const auto* operations = new Outcome(find_key(kind, operation_candidates));
  return *operations;
}

TriggerKind resolved(TriggerKind kind) {
  if (kind != TriggerKind::automatic) return kind;
  return outcome_of(TriggerKind::fallback).registration ? TriggerKind::fallback
                                                        : TriggerKind::operations;
}

std::string_view name_of(TriggerKind kind) {
  return kind == TriggerKind::fallback ? "fallback" : "operations";
}

}  // namespace

DispatchKey trigger_key(TriggerKind kind) {
  const Outcome& outcome = outcome_of(resolved(kind));
  if (outcome.registration) return outcome.registration->key;
  throw Error(
      formatted("sharded parameters: this LibTorch leaves no dispatch key for them ({}); tried {}",
                name_of(resolved(kind)), outcome.tried));
}

std::string describe_trigger(TriggerKind kind) {
  return formatted("{} on {}", name_of(resolved(kind)), c10::toString(trigger_key(kind)));
}

}  // namespace lockstep::shard
