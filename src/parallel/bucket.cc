#include "parallel/bucket.h"

#include "base/format.h"
#include "layout/flat_layout.h"
#include "module/checks.h"
#include "module/tensors.h"

#include <lockstep/dispatch/deferred_init.h>
#include <lockstep/dispatch/part.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <torch/nn/module.h>

#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

namespace lockstep::parallel {
namespace {

using modules::without_repetitions;

}  // namespace

at::Tensor place(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef sizes,
                 at::IntArrayRef strides) {
  return at::empty({0}, flat.options())
      .set_(flat.storage(), flat.storage_offset() + offset, sizes, strides);
}

layout::BucketPlan plan_for(const std::vector<at::Tensor>& tensors,
                            const layout::PlanOptions& limits) {
  std::vector<layout::PlanItem> items;
  for (const at::Tensor& tensor : tensors)
    items.push_back({static_cast<std::int64_t>(without_repetitions(tensor).nbytes()),
                     modules::kind_of(tensor)});
  std::vector<int> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  return layout::plan_buckets(items, order, limits);
}

Bucket::Bucket(const Group& group, layout::FlatLayout layout, c10::ScalarType dtype,
               c10::Device device, std::string name)
    : layout_(std::move(layout)),
      flat_(group.empty_shared({layout_.numel()}, at::TensorOptions().dtype(dtype).device(device))),
      name_(std::move(name)) {
  flat_.zero_();
}

at::Tensor Bucket::reducible() const {
  return flat_.is_complex() ? at::view_as_real(flat_) : flat_;
}

at::Tensor Bucket::view(int i, const at::Tensor& like) const {
  if (!like.is_non_overlapping_and_dense()) return view(i);
  const layout::FlatEntry& entry = layout_.entry(i);
  return place(flat_, entry.offset, entry.sizes, like.strides());
}

at::Tensor Bucket::view(int i) const {
  const layout::FlatEntry& entry = layout_.entry(i);
  return place(flat_, entry.offset, entry.sizes, c10::contiguous_strides(entry.sizes));
}

// A part in the bucket's memory has a separate storage.
bool Bucket::is_at(const at::Tensor& tensor, std::int64_t offset) const {
  if (tensor.numel() > 0 && dispatch::part_of(tensor) != nullptr)
    return tensor.const_data_ptr() == static_cast<const std::byte*>(flat_.const_data_ptr()) +
                                          offset * static_cast<std::int64_t>(flat_.element_size());
  return tensor.storage().unsafeGetStorageImpl() == flat_.storage().unsafeGetStorageImpl() &&
         tensor.storage_offset() == flat_.storage_offset() + offset;
}

bool Bucket::holds(int i, const at::Tensor& tensor, const at::Tensor& like) const {
  const layout::FlatEntry& entry = layout_.entry(i);
  if (!tensor.defined() || tensor.layout() != at::kStrided ||
      tensor.scalar_type() != flat_.scalar_type())
    return false;
  if (tensor.sizes() != entry.sizes || !is_at(tensor, entry.offset)) return false;
  return like.is_non_overlapping_and_dense() ? tensor.strides() == like.strides()
                                             : tensor.is_contiguous();
}

void give_pages_back(const at::Tensor& buffer) {
  if (!buffer.is_cpu() || buffer.nbytes() == 0) return;
  auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<std::uintptr_t>(buffer.const_data_ptr());
  std::uintptr_t end = (begin + buffer.nbytes()) / page * page;
  begin = (begin + page - 1) / page * page;
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_REMOVE);
}

namespace {

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
  for (const std::vector<int>& numbers :
       plan_for(tensors, {.first_bucket_bytes = bucket_bytes, .bucket_bytes = bucket_bytes})) {
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
  constexpr auto unlimited = std::numeric_limits<std::int64_t>::max();
  items_.clear();
  for (const std::vector<int>& numbers :
       plan_for(tensors_, {.first_bucket_bytes = unlimited, .bucket_bytes = unlimited})) {
    std::vector<at::Tensor> tensors = select(tensors_, numbers);
    Bucket bucket = bucket_for(group_, tensors);
    items_.push_back({std::move(bucket), std::move(tensors)});
  }
}

bool StateBroadcast::fits() const {
  for (const Item& item : items_) {
    for (std::size_t i = 0; i < item.tensors.size(); ++i) {
      const at::Tensor& tensor = item.tensors[i];
      if (tensor.scalar_type() != item.bucket.flat().scalar_type() ||
          tensor.device() != item.bucket.flat().device())
        return false;
      if (without_repetitions(tensor).sizes() !=
          item.bucket.layout().entry(static_cast<int>(i)).sizes)
        return false;
    }
  }
  return true;
}

void StateBroadcast::post(std::optional<Duration> timeout, int root) {
  at::NoGradGuard no_grad;
  root_ = root;
  if (!fits()) build();
  for (Item& item : items_) {
    item.work.wait();
    if (group_.is_root(root_)) pack(item.tensors, item.bucket);
    item.work = group_.broadcast(item.bucket.flat(), root_,
                                 {.tag = item.bucket.name(), .timeout = timeout});
  }
}

void StateBroadcast::finish() {
  at::NoGradGuard no_grad;
  for (Item& item : items_) {
    item.work.wait();
    if (!group_.is_root(root_)) unpack(item.bucket, item.tensors);
  }
}

std::vector<std::string> deferred_lines(const torch::nn::Module& module) {
  std::vector<std::string> lines;
  auto add = [&](const auto& items) {
    for (const auto& item : items)
      if (dispatch::is_deferred(item.value()))
        lines.push_back(formatted("deferred {}", item.key()));
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return lines;
}

void give_values(const Group& group, const std::vector<at::Tensor>& tensors,
                 std::int64_t bucket_bytes, const CallOptions& call) {
  std::vector<at::Tensor> deferred;
  std::ranges::copy_if(tensors, std::back_inserter(deferred), dispatch::is_deferred);
  for (const at::Tensor& tensor : deferred) {
    if (group.is_root()) {
      dispatch::give_values(tensor);
    } else {
      dispatch::give_memory(tensor);
    }
  }
  parallel::broadcast_now(group, deferred, bucket_bytes, call);
}

void make_ordinary(const at::Tensor& tensor) {
  if (!dispatch::is_deferred(tensor)) return;
  at::NoGradGuard no_grad;
  tensor.set_data(dispatch::as_ordinary(tensor));
}

}  // namespace lockstep::parallel
