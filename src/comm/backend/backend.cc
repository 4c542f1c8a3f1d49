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
  constexpr std::array<std::pair<at::ScalarType, DType>, 20> known{{
      {at::kFloat, DType::float32},
      {at::kBFloat16, DType::bfloat16},
      {at::kLong, DType::int64},
      {at::kDouble, DType::float64},
      {at::kHalf, DType::float16},
      {at::kInt, DType::int32},
      {at::kByte, DType::uint8},
      {at::kBool, DType::boolean},
      {at::kShort, DType::int16},
      {at::kChar, DType::int8},
      {at::kComplexFloat, DType::complex64},
      {at::kComplexDouble, DType::complex128},
      {at::kComplexHalf, DType::complex32},
      {at::kUInt16, DType::uint16},
      {at::kUInt32, DType::uint32},
      {at::kUInt64, DType::uint64},
      {at::kFloat8_e5m2, DType::float8_e5m2},
      {at::kFloat8_e4m3fn, DType::float8_e4m3fn},
      {at::kFloat8_e5m2fnuz, DType::float8_e5m2fnuz},
      {at::kFloat8_e4m3fnuz, DType::float8_e4m3fnuz},
  }};
  for (const auto& [one, type] : known) {
    if (one == dtype) return type;
  }
  const auto bytes = c10::elementSize(dtype);
  for (auto type :
       {DType::opaque1, DType::opaque2, DType::opaque4, DType::opaque8, DType::opaque16}) {
    if (bytes_of(type) == bytes) return type;
  }
  throw InvalidArgument(formatted("dtype {}: expected elements of 1, 2, 4, 8 or 16 bytes, found {}",
                                  c10::toString(dtype), bytes));
}

at::Tensor Backend::empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

at::Tensor Backend::empty_node_shared(at::IntArrayRef, const at::TensorOptions&, const Agree&) {
  throw InvalidArgument(
      formatted("empty_node_shared: the ranks of the backend {} share no memory", name()));
}

}  // namespace lockstep
