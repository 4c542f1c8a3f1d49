// NCCL, where LibTorch comes with CUDA and the CUDA headers were found when this was built.
#pragma once

#include "comm/c10d/engine.h"

namespace lockstep::c10d_engine {

[[nodiscard]] bool has_nccl();

// As make_gloo.
[[nodiscard]] std::shared_ptr<Engine> make_nccl(std::shared_ptr<Store> store,
                                                const std::string& name, int rank, int size,
                                                Duration join_timeout);

}  // namespace lockstep::c10d_engine
