#include "parallel/state_broadcast.h"

#include "layout/bucket_plan.h"
#include "module/specs.h"
#include "module/tensor_memory.h"
#include "parallel/pages.h"

#include <ATen/core/grad_mode.h>

#include <limits>
#include <numeric>
#include <utility>

namespace lockstep::parallel {
namespace {

using modules::without_repetitions;

layout::BucketPlan plan_for(const std::vector<at::Tensor>& tensors, std::int64_t bucket_bytes) {
  std::vector<layout::PlanItem> items;
  for (const at::Tensor& tensor : tensors)
    items.push_back({static_cast<std::int64_t>(without_repetitions(tensor).nbytes()),
                     modules::kind_of(tensor)});
  std::vector<int> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  return layout::plan_buckets(items, order,
                              {.first_bucket_bytes = bucket_bytes, .bucket_bytes = bucket_bytes});
}

std::vector<at::Tensor> select(const std::vector<at::Tensor>& tensors,
                               const std::vector<int>& numbers) {
  std::vector<at::Tensor> chosen;
  for (int number : numbers) chosen.push_back(tensors[static_cast<std::size_t>(number)]);
  return chosen;
}

Bucket bucket_for(const Group& group, const std::vector<at::Tensor>& tensors) {
  std::vector<layout::TensorSpec> specs;
  for (const at::Tensor& tensor : tensors)
    specs.push_back({"", without_repetitions(tensor).sizes().vec(),
                     modules::spec_of(tensor.scalar_type()), nullptr});
  const at::Tensor& first = tensors.front();
  return {group, layout::FlatLayout(specs), first.scalar_type(), first.device(), "state of rank 0"};
}

void pack(const std::vector<at::Tensor>& tensors, Bucket& bucket) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    bucket.view(static_cast<int>(i)).copy_(without_repetitions(tensors[i].detach()));
}

void unpack(const Bucket& bucket, const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    without_repetitions(tensors[i].variable_data()).copy_(bucket.view(static_cast<int>(i)));
}

}  // namespace

void broadcast_now(const Group& group, const std::vector<at::Tensor>& tensors,
                   std::int64_t bucket_bytes, const CallOptions& call) {
  if (group.size() == 1) return;
  at::NoGradGuard no_grad;
  for (const std::vector<int>& numbers : plan_for(tensors, bucket_bytes)) {
    std::vector<at::Tensor> part = select(tensors, numbers);
    Bucket bucket = bucket_for(group, part);
    if (group.is_root()) pack(part, bucket);
    Group(group).broadcast(bucket.flat(), 0, call).wait();
    if (!group.is_root()) unpack(bucket, part);
    give_pages_back(bucket.flat());
  }
}

StateBroadcast::StateBroadcast(Group& group, std::vector<at::Tensor> tensors)
    : group_(group), tensors_(std::move(tensors)) {
  if (group_.size() > 1) build();
}

void StateBroadcast::build() {
  parts_.clear();
  for (const std::vector<int>& numbers :
       plan_for(tensors_, std::numeric_limits<std::int64_t>::max())) {
    std::vector<at::Tensor> part = select(tensors_, numbers);
    Bucket bucket = bucket_for(group_, part);
    parts_.push_back({std::move(bucket), std::move(part)});
  }
}

bool StateBroadcast::fits() const {
  for (const Part& part : parts_) {
    for (std::size_t i = 0; i < part.tensors.size(); ++i) {
      const at::Tensor& tensor = part.tensors[i];
      if (tensor.scalar_type() != part.bucket.flat().scalar_type() ||
          tensor.device() != part.bucket.flat().device())
        return false;
      if (without_repetitions(tensor).sizes() !=
          part.bucket.layout().entry(static_cast<int>(i)).sizes)
        return false;
    }
  }
  return true;
}

void StateBroadcast::post(std::optional<Duration> timeout, int root) {
  at::NoGradGuard no_grad;
  root_ = root;
  if (!fits()) build();
  for (Part& part : parts_) {
    part.work.wait();
    if (group_.is_root(root_)) pack(part.tensors, part.bucket);
    part.work = group_.broadcast(part.bucket.flat(), root_,
                                 {.tag = part.bucket.name(), .timeout = timeout});
  }
}

void StateBroadcast::finish() {
  at::NoGradGuard no_grad;
  for (Part& part : parts_) {
    part.work.wait();
    if (!group_.is_root(root_)) unpack(part.bucket, part.tensors);
  }
}

}  // namespace lockstep::parallel
