// The dispatch key by which operations on our tensors come to the interceptors (dispatch/call.h).
//
// C++ modules have no hooks around forward(), but every operation passes LibTorch's dispatcher. A
// tensor with one more key than usual passes a function of ours on its way, below autograd: so
// autograd saves the tensor itself, and backward and recomputation come again by themselves.
//
// LibTorch has no key for this, so one below autograd that nothing else uses takes our function as
// its fallback for all operations. It is used only when a self-test has passed: an operation, a
// view and backward through released memory give the right values.
//
// What is registered stays for the life of the process, and costs operations on other tensors
// nothing.
#pragma once

#include <c10/core/DispatchKey.h>

#include <string>

namespace lockstep::dispatch {

// Any thread; the first call takes some milliseconds. Error when no key works: it says what was
// tried.
[[nodiscard]] c10::DispatchKey key();

// "fallback on Fake", for messages and tests.
[[nodiscard]] std::string describe_key();

}  // namespace lockstep::dispatch
