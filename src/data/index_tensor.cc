#include "data/index_tensor.h"

#include "base/check.h"

namespace lockstep::data {

at::Tensor index_tensor(c10::ArrayRef<std::size_t> indices, std::size_t size,
                        std::string_view dataset) {
  at::Tensor tensor = at::empty(static_cast<std::int64_t>(indices.size()), at::kLong);
  auto* values = tensor.mutable_data_ptr<std::int64_t>();
  for (std::size_t index : indices) {
    check(index < size, "{}: expected an index below {}, found {}", dataset, size, index);
    *values++ = static_cast<std::int64_t>(index);
  }
  return tensor;
}

}  // namespace lockstep::data
