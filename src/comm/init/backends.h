// The backends that join processes, by name, and the connections for messages.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/backend.h>
#include <lockstep/comm/group.h>
#include <lockstep/store/store.h>

#include "comm/backend/options.h"

#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
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

// The source and destination of messages, as ranks of a group.
using Directions = std::set<std::pair<int, int>>;

// Makes the connections for messages before the first step. Collective over the ranks of
// `directions`, which are equal on all ranks, and blocking. If has_streams(group), sends a message
// in each direction: with NCCL the first one makes the direction's communicator, which blocks and
// allocates the GPU's memory. Else does nothing.
void connect(Group& group, const Directions& directions, std::optional<Duration> timeout = {});

}  // namespace lockstep
