// The backends that join processes, by name.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include "comm/backend/options.h"

#include <memory>
#include <string_view>
#include <vector>

namespace lockstep {

// The backends of this build: "shm", "gloo", "nccl", "mpi", "hierarchical", "hierarchical:gloo",
// ...
[[nodiscard]] std::vector<std::string_view> backend_names();

// Like has_streams() of device.h, for a group whose backend has this name.
[[nodiscard]] bool has_streams(std::string_view name);

// Makes the world of `size` ranks that share `store`. Blocks until all ranks have joined. Throws
// BadInput if this build has no backend `name`, and the errors of the backend.
[[nodiscard]] std::shared_ptr<Backend> make_backend(std::string_view name,
                                                    std::shared_ptr<Store> store, int rank,
                                                    int size, const BackendOptions& options);

}  // namespace lockstep
