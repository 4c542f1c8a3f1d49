#include "apps/bench/together.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

namespace lockstep::apps {

std::vector<double> largest_of_ranks(Group world, std::span<const double> values) {
  at::Tensor most = at::tensor(at::ArrayRef<double>(values.data(), values.size()), at::kDouble);
  world.all_reduce(most, Op::max).wait();
  const auto* found = most.const_data_ptr<double>();
  return {found, found + most.numel()};
}

std::vector<std::vector<std::int64_t>> gathered(Group world, std::span<const std::int64_t> values) {
  at::Tensor own = at::tensor(at::ArrayRef<std::int64_t>(values.data(), values.size()), at::kLong);
  at::Tensor all = at::empty({world.size() * own.numel()}, at::kLong);
  world.all_gather(all, own).wait();
  std::vector<std::vector<std::int64_t>> ranks;
  const auto* found = all.const_data_ptr<std::int64_t>();
  for (int rank = 0; rank < world.size(); ++rank, found += own.numel())
    ranks.emplace_back(found, found + own.numel());
  return ranks;
}

}  // namespace lockstep::apps
