#include <lockstep/comm/backend.h>

#include <lockstep/base/error.h>

#include "base/format.h"
#include "sys/own_process.h"

namespace lockstep {

Backend::Backend(int rank, int size) : rank_(rank), size_(size), process_(sys::own_process()) {}

bool Backend::is_copy_of_parent() const { return sys::own_process() != process_; }

void Backend::check_process() const {
  if (!is_copy_of_parent()) [[likely]]
    return;
  throw InvalidArgument(
      formatted("{}: a group of process {} is not usable in its child {}; ranks are started "
                "before init()",
                name(), process_, sys::own_process()));
}

}  // namespace lockstep
