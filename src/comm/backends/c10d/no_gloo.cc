#include "comm/backends/c10d/make.h"

#include <lockstep/base/error.h>

namespace lockstep::c10d_backend {

bool has_gloo() { return false; }

std::shared_ptr<C10dConnection> make_gloo(std::shared_ptr<Store>, const std::string&, int, int,
                                          const BackendOptions&) {
  throw BadInput(
      "the backend gloo is not in this build: install Gloo's headers (libgloo-dev) and build "
      "again");
}

}  // namespace lockstep::c10d_backend
