#include "parallel/threads/scatter.h"

#include "base/check.h"

#include <algorithm>
#include <cstdint>

namespace lockstep::threads {
namespace {

std::int64_t rows_of(std::span<const at::Tensor> inputs) {
  std::int64_t rows = -1;
  std::size_t first = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check(inputs[i].defined(), "DataParallel: input {} is an undefined tensor", i);
    check(!inputs[i].requires_grad(),
          "DataParallel: input {} requires a gradient; DataParallel computes those of parameters "
          "only: pass a detach()",
          i);
    if (inputs[i].dim() == 0) continue;
    if (rows < 0) {
      rows = inputs[i].size(0);
      first = i;
    }
    check(inputs[i].size(0) == rows,
          "DataParallel: input {} has {} rows, and input {} has {}: all of a mini-batch must have "
          "equally many",
          first, rows, i, inputs[i].size(0));
  }
  check(rows >= 0, "DataParallel: expected an input with rows to divide, found none (inputs: {})",
        inputs.size());
  check(rows > 0, "DataParallel: the mini-batch has no rows");
  return rows;
}

}  // namespace

std::vector<std::vector<at::Tensor>> scatter(std::span<const at::Tensor> inputs, int devices) {
  const std::int64_t rows = rows_of(inputs);
  std::vector<std::vector<at::Tensor>> shares(static_cast<std::size_t>(devices));
  for (std::int64_t device = 0; device < devices; ++device) {
    const std::int64_t uneven = rows % devices;
    const std::int64_t count = rows / devices + (device < uneven ? 1 : 0);
    const std::int64_t begin = rows / devices * device + std::min(device, uneven);
    if (count == 0) continue;
    for (const at::Tensor& input : inputs)
      shares[static_cast<std::size_t>(device)].push_back(
          input.dim() == 0 ? input : input.narrow(0, begin, count));
  }
  return shares;
}

}  // namespace lockstep::threads
