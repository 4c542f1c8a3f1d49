#include "parallel/sharded/next_gather.h"

#include <ATen/ops/tensor.h>

#include <cstdint>
#include <limits>

namespace lockstep::sharded {
namespace {

constexpr std::int32_t nothing = std::numeric_limits<std::int32_t>::min();

}  // namespace

// The largest of both signs: the largest and the smallest.
NextGather::NextGather(Group& group, std::optional<int> own, c10::Device device,
                       std::optional<Duration> timeout)
    : said_(own ? at::tensor({*own, -*own, 0}, at::kInt)
                : at::tensor({nothing, nothing, 1}, at::kInt)) {
  said_ = said_.to(device);
  work_ =
      group.all_reduce(said_, Op::max, {.tag = "next gather of backward()", .timeout = timeout});
}

NextGather::Answer NextGather::answer() {
  work_.wait();
  at::Tensor said = said_.cpu();
  const auto* most = said.const_data_ptr<std::int32_t>();
  if (most[0] == nothing) return {.failed = true};
  return {.unit = most[0], .agreed = most[0] == -most[1], .failed = most[2] > 0};
}

}  // namespace lockstep::sharded
