// Determines which ranks of a group share a host.
#pragma once

#include "base/fingerprint.h"
#include "sys/topology.h"

#include <lockstep/comm/group.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lockstep::data_parallel {

// Collective. Returns, for each rank, the first rank on the same host.
[[nodiscard]] inline std::vector<int> first_ranks_of_hosts(Group group) {
  const auto own = static_cast<std::int64_t>(fingerprint(sys::host_of_rank()));
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, own, at::kLong), {.tag = "hosts"}).wait();
  const auto* begin = all.const_data_ptr<std::int64_t>();
  std::vector<int> first;
  for (int rank = 0; rank < group.size(); ++rank)
    first.push_back(static_cast<int>(std::find(begin, begin + rank, begin[rank]) - begin));
  return first;
}

}  // namespace lockstep::data_parallel
