#include "comm/backend/node_shared.h"

#include "base/check.h"
#include "base/format.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/backend.h>

#include <c10/core/ScalarType.h>

#include <limits>

namespace lockstep {

at::Tensor Backend::empty_node_shared(at::IntArrayRef, const at::TensorOptions&, const Agree&) {
  throw InvalidArgument(
      formatted("empty_node_shared: the ranks of the engine {} share no memory", name()));
}

std::size_t host_bytes(std::string_view call, at::IntArrayRef sizes,
                       const at::TensorOptions& options) {
  check(options.device().is_cpu(), "{}: expected host memory, found {}", call,
        options.device().str());
  auto bytes = static_cast<std::int64_t>(options.dtype().itemsize());
  for (auto size : sizes) {
    check(size >= 0, "{}: sizes must not be negative, found {}", call, size);
    bool overflows = size > 0 && bytes > std::numeric_limits<std::int64_t>::max() / size;
    check(!overflows, "{}: more bytes than there are addresses", call);
    bytes *= size;
  }
  return static_cast<std::size_t>(bytes);
}

std::string node_shared_tag(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return formatted("empty_node_shared [{}] {}", listed(sizes, ", "),
                   c10::toString(c10::typeMetaToScalarType(options.dtype())));
}

}  // namespace lockstep
