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

bool Backend::passes_handles(int, std::int64_t) const { return false; }

std::int64_t Backend::lend(const at::Tensor&, int) { return 0; }

void Backend::give_up(std::int64_t) noexcept {}

at::Tensor Backend::borrow(std::int64_t, int, at::IntArrayRef, const at::TensorOptions&) {
  throw InvalidArgument(formatted("{}: tensors do not go by handle", name()));
}

}  // namespace lockstep
