// The dispatch key by which operations on our tensors come to the interceptors (dispatch/call.h).
//
// C++ modules have no hooks around forward(), but every operation passes LibTorch's dispatcher. A
// tensor with one more key than usual passes a function of ours on its way, below autograd: so
// autograd saves the tensor itself, and backward and recomputation come again by themselves.
//
// LibTorch has no key for this, so one below autograd that nothing else uses takes our function: as
// the kernel of each operation, and as the fallback for operations that are defined later. It is
// used only if a self-test passes: operations, a view and backward through released memory give the
// right values.
//
// Keys of other layouts (sparse, CSR, nested, oneDNN) are higher: an operation on such a tensor and
// one of ours would go past the interceptors. It throws InvalidArgument.
//
// The registrations stay for the life of the process. They cost operations on other dense tensors
// nothing, and operations of several tensors in another layout one boxed call.
#pragma once

#include <c10/core/DispatchKey.h>

#include <string>

namespace lockstep::dispatch {

// For custom random generators out of LibTorch's tree; no generator of LibTorch has it.
inline constexpr c10::DispatchKey our_key = c10::DispatchKey::CustomRNGKeyId;

// Factories without tensor arguments (empty(), zeros(), ...) compute the keys of their device and
// lose ours, which a thread that builds with Deferral includes. That thread includes this key, too:
// factories have our function as their kernel for it, and other operations pass it by. LibTorch
// keeps it for deferred construction out of its tree.
inline constexpr c10::DispatchKey factory_key = c10::DispatchKey::DeferredInit;

// Returns our_key, which works. Any thread; the first call registers our function, which takes some
// 20 milliseconds, and other threads must not be computing meanwhile. If the key does not work,
// throws Error, which says why.
[[nodiscard]] c10::DispatchKey key();

// The self-test of our dispatch key (dispatch/key.h).

// Uses a released tensor directly, through a view, in place and in backward, and in each kind of
// operation. Returns what came out wrong; empty if nothing did.
[[nodiscard]] std::string try_key();

}  // namespace lockstep::dispatch
