// The c10d backends Gloo, NCCL and user-defined ones, and the backends on top of them.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include "comm/backend/options.h"
#include "comm/backends/c10d/connection.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::c10d_backend {

// Returns true if this build includes the backend.
[[nodiscard]] bool has_gloo();
[[nodiscard]] bool has_nccl();

// Returns a name for each GPU that this process sees, equal in all processes: NVIDIA's UUID. Empty
// in a build without NCCL.
[[nodiscard]] std::vector<std::string> gpu_names();

// `gpus` names the GPU of each rank; an empty name means that it sees no GPU. Throws BadInput that
// names a rank without a GPU, or two ranks that share one.
void check_gpus(std::span<const std::string> gpus);

// Gloo, if its headers were found at build time.

// Connects with size - 1 peers that meet under `name` in the store. Blocks until all ranks have
// joined. Throws BadInput in a build without Gloo, and Timeout if a peer does not join.
[[nodiscard]] std::shared_ptr<C10dConnection> make_gloo(std::shared_ptr<Store> store,
                                                        const std::string& name, int rank, int size,
                                                        const BackendOptions& options);

// NCCL, if LibTorch has CUDA and the CUDA headers were found at build time.

// Meets size - 1 peers in the store. Blocks until all ranks have joined and their GPUs are
// connected. Throws BadInput in a build without NCCL, if a rank has no GPU, and if two ranks would
// share a GPU; throws Timeout if a peer does not join.
[[nodiscard]] std::shared_ptr<C10dConnection> make_nccl(const std::shared_ptr<Store>& store,
                                                        int rank, int size,
                                                        const BackendOptions& options);

// A user-defined c10d backend.

// Blocks until all ranks have joined `group` in the store. `name` is the name of the backend.
// Throws PeerLost if options.c10d() throws, and InvalidArgument if it returns null.
[[nodiscard]] std::shared_ptr<C10dConnection> make_custom(std::string name,
                                                          std::shared_ptr<Store> store,
                                                          const std::string& group, int rank,
                                                          int size, const BackendOptions& options);

// Makes the world of `size` ranks that share `store`. `name`: "gloo", "nccl", or any name for a
// user-defined backend. Blocks until all ranks have joined. Throws the errors of the three
// functions above.
[[nodiscard]] std::shared_ptr<Backend> make(std::string_view name, std::shared_ptr<Store> store,
                                            int rank, int size, const BackendOptions& options);

}  // namespace lockstep::c10d_backend
