#include "global/range_check.h"

#include "base/check.h"

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/aminmax.h>

namespace lockstep::global {

void check_range(const at::Tensor& values, std::int64_t end, const std::string& expected) {
  if (values.numel() == 0) return;
  if (!values.is_cpu())
    return at::_assert_async(values.ge(0).logical_and_(values.lt(end)).all(), expected);
  const auto [least, most] = at::aminmax(values);
  const auto first = least.item<std::int64_t>(), last = most.item<std::int64_t>();
  check(first >= 0 && last < end, "{}, found {}", expected, first < 0 ? first : last);
}

}  // namespace lockstep::global
