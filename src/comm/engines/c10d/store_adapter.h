// Between our Store and c10d's, both ways: Gloo and NCCL need a c10d store to meet, and under
// torchrun the only store is a c10d one.
#pragma once

#include <lockstep/store/store.h>

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

namespace c10d {
class Store;
}

namespace lockstep::c10d_engine {

// A c10d store whose keys are `prefix` + key in `store`. Its waits end by the c10d store's own
// timeout.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> as_c10d_store(std::shared_ptr<Store> store,
                                                            std::string prefix);

// A Store whose keys are `prefix` + key in `store`. Waits ask again and again (c10d's stores let
// one call block all others of the same client), so any thread may call.
[[nodiscard]] std::shared_ptr<Store> as_store(c10::intrusive_ptr<c10d::Store> store,
                                              std::string prefix);

}  // namespace lockstep::c10d_engine
