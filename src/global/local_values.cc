#include "global/local_values.h"

#include "base/check.h"
#include "global/global_tensor.h"

#include <lockstep/global/tensor.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace lockstep::global {

at::Tensor local_values(const at::Tensor& tensor) {
  GlobalTensor* found = global_of(tensor);
  if (found == nullptr) return tensor;
  check_is_fresh(*found, "local_values");
  return found->local;
}

at::Tensor plain(const at::Tensor& tensor) {
  return global_of(tensor) == nullptr ? tensor : full_tensor(tensor);
}

void begin_write(const at::Tensor& tensor) {
  if (GlobalTensor* found = global_of(tensor)) found->begin_write();
}

void settle_gradient(const at::Tensor& parameter) {
  GlobalTensor* found = global_of(parameter);
  if (found == nullptr) return;
  const PlacementList& wanted = found->spec->placements;
  const at::Tensor& gradient = parameter.grad();
  const auto& now = expect_global(gradient, "gradient of a global parameter").spec->placements;
  if (std::ranges::equal(now, wanted)) return;
  at::NoGradGuard no_grad;
  parameter.mutable_grad() =
      redistribute(gradient.detach(), Placements(wanted.begin(), wanted.end()));
}

std::vector<Group> groups_that_cut(const at::Tensor& tensor) {
  std::vector<Group> groups;
  GlobalTensor* found = global_of(tensor);
  if (found == nullptr) return groups;
  MeshContext& context = *found->spec->context;
  for (int axis = 0; axis < context.axes(); ++axis) {
    auto place = static_cast<std::size_t>(axis);
    if (found->spec->placements[place].is_shard() && context.place()[place].size > 1)
      groups.push_back(context.group(axis));
  }
  return groups;
}

}  // namespace lockstep::global
