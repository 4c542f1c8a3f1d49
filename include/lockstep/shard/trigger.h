// The dispatch key that asks the owner of a LazyStorage for memory before an operation uses it.
//
// C++ modules have no hooks around forward(), but every operation passes LibTorch's dispatcher. A
// tensor with one more key than usual passes a function of ours on its way, below autograd: so
// autograd saves the tensor itself, and backward and recomputation ask again by themselves.
//
// LibTorch has no key for this, so one that nothing else uses is found at run time, in two ways:
//   fallback     a key below autograd on which no fallback is registered takes one for all
//                operations;
//   operations   an unused backend's key, where LibTorch's own kernels for all backends come before
//                a fallback: the function is registered for each of these operations.
// Either is used only when a self-test has passed: an operation, a view and backward through
// released memory give the right values.
//
// What is registered stays for the life of the process, and costs operations on other tensors
// nothing.
#pragma once

#include <c10/core/DispatchKey.h>

#include <string>

namespace lockstep::shard {

enum class TriggerKind { automatic, fallback, operations };

// Any thread; the first call for a kind takes some milliseconds. `automatic` is the first that
// works. Error when none does: it says what was tried.
[[nodiscard]] c10::DispatchKey trigger_key(TriggerKind kind = TriggerKind::automatic);

// "fallback on Fake", for messages and tests.
[[nodiscard]] std::string describe_trigger(TriggerKind kind = TriggerKind::automatic);

}  // namespace lockstep::shard
