#include "comm/backends/c10d/make.h"

#include <lockstep/base/error.h>

namespace lockstep::c10d_backend {

bool has_nccl() { return false; }

std::vector<std::string> gpu_names() { return {}; }

std::shared_ptr<C10dConnection> make_nccl(const std::shared_ptr<Store>&, int, int,
                                          const BackendOptions&) {
  throw BadInput(
      "the backend nccl is not in this build: it needs a LibTorch with CUDA and the CUDA headers");
}

}  // namespace lockstep::c10d_backend
