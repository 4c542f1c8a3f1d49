#include <lockstep/comm/backend.h>

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/format.h"
#include "comm/call/record.h"
#include "sys/own_process.h"

#include <ATen/ops/empty.h>

#include <array>
#include <utility>

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

std::shared_ptr<Backend> Backend::on_host(std::string_view name) {
  check(!has_streams(), "{}: this backend has no groups for tensors in host memory", this->name());
  return subset(all_ranks(size_), name);
}

DType dtype_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return DType::float64;
    case at::kFloat:
      return DType::float32;
    case at::kHalf:
      return DType::float16;
    case at::kBFloat16:
      return DType::bfloat16;
    case at::kLong:
      return DType::int64;
    case at::kInt:
      return DType::int32;
    case at::kShort:
      return DType::int16;
    case at::kChar:
      return DType::int8;
    case at::kByte:
      return DType::uint8;
    case at::kBool:
      return DType::boolean;
    case at::kComplexFloat:
      return DType::complex64;
    case at::kComplexDouble:
      return DType::complex128;
    case at::kUInt16:
      return DType::uint16;
    case at::kUInt32:
      return DType::uint32;
    case at::kUInt64:
      return DType::uint64;
    case at::kComplexHalf:
      return DType::complex32;
    case at::kFloat8_e5m2:
      return DType::float8_e5m2;
    case at::kFloat8_e4m3fn:
      return DType::float8_e4m3fn;
    case at::kFloat8_e5m2fnuz:
      return DType::float8_e5m2fnuz;
    case at::kFloat8_e4m3fnuz:
      return DType::float8_e4m3fnuz;
    default:
      break;
  }
  switch (c10::elementSize(dtype)) {
    case 1:
      return DType::opaque1;
    case 2:
      return DType::opaque2;
    case 4:
      return DType::opaque4;
    case 8:
      return DType::opaque8;
    case 16:
      return DType::opaque16;
    default:
      throw InvalidArgument(
          formatted("dtype {}: expected elements of 1, 2, 4, 8 or 16 bytes, found {}",
                    c10::toString(dtype), c10::elementSize(dtype)));
  }
}

at::Tensor Backend::empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

at::Tensor Backend::empty_node_shared(at::IntArrayRef, const at::TensorOptions&, const Agree&) {
  throw InvalidArgument(
      formatted("empty_node_shared: the ranks of the backend {} share no memory", name()));
}

}  // namespace lockstep
