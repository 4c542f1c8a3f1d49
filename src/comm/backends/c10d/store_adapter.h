// Adapters between Store and c10d::Store, in both directions: Gloo and NCCL need a c10d store for
// rendezvous, and under torchrun the only store is a c10d store.
#pragma once

#include <lockstep/store/store.h>

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

namespace c10d {
class Store;
}

namespace lockstep::c10d_backend {

// Returns a c10d store whose keys are `prefix` + key in `store`, and whose waits end after
// `timeout`, which its setTimeout() may change.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> as_c10d_store(std::shared_ptr<Store> store,
                                                            std::string prefix, Duration timeout);

// Returns a Store with the keys of `store`. Thread-safe: waits poll, because one blocking call of a
// c10d store blocks all other calls of the same client.
[[nodiscard]] std::shared_ptr<Store> as_store(c10::intrusive_ptr<c10d::Store> store);

}  // namespace lockstep::c10d_backend
