// The dispatch key that routes operations on our tensors to the interceptors (dispatch/call.h).
//
// C++ modules have no hooks around forward(), but every operation passes LibTorch's dispatcher. An
// operation on a tensor with one additional key passes our function on its way, below autograd:
// autograd saves the tensor itself, so backward and recomputation pass our function again.
//
// LibTorch has no key for this purpose, so our function uses one below autograd that nothing else
// uses: as the kernel of each operation, and as the fallback for operations that are defined later.
// The key is used only if a self-test passes: operations, a view and backward through released
// memory must give the right values.
//
// Keys of other layouts (sparse, CSR, nested, oneDNN) have a higher priority: an operation on such
// a tensor and one of ours would bypass the interceptors, so it throws InvalidArgument.
//
// The registrations stay for the lifetime of the process. They cost nothing for operations on other
// dense tensors, and one boxed call for operations on several tensors of another layout.
#pragma once

#include <c10/core/DispatchKey.h>

#include <string>

namespace lockstep::dispatch {

// LibTorch reserves it for out-of-tree random generators and does not use it itself.
inline constexpr c10::DispatchKey our_key = c10::DispatchKey::CustomRNGKeyId;

// Factories without tensor arguments (empty(), zeros(), ...) compute their keys from the device and
// drop our key, even if a thread that constructs with DeferredInit includes it. That thread
// therefore includes this key, too: our function is the factories' kernel for it, and other
// operations ignore it. LibTorch reserves it for out-of-tree deferred construction.
inline constexpr c10::DispatchKey factory_key = c10::DispatchKey::DeferredInit;

// Returns our_key once it is known to work. Thread-safe. The first call registers our function,
// which takes about 20 ms; other threads must not be computing meanwhile. Throws Error with the
// reason if the key does not work.
[[nodiscard]] c10::DispatchKey key();

// Self-test of the dispatch key: uses a released tensor directly, through a view, in place and in
// backward, and in each kind of operation. Returns the first wrong result; empty if all are right.
[[nodiscard]] std::string try_key();

}  // namespace lockstep::dispatch
