#include "comm/engines/c10d/make.h"

#include <lockstep/base/error.h>

namespace lockstep::c10d_engine {

bool has_gloo() { return false; }

std::shared_ptr<Engine> make_gloo(std::shared_ptr<Store>, const std::string&, int, int,
                                  GlooOptions) {
  throw BadInput(
      "the backend gloo is not in this build: install Gloo's headers (libgloo-dev) and build "
      "again");
}

}  // namespace lockstep::c10d_engine
