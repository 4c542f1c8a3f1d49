#include "parallel/sharded/offload.h"

#include "base/check.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <utility>

namespace lockstep::sharded {

at::Tensor Offload::zeros(std::int64_t count, at::ScalarType dtype) {
  c10::InferenceMode off(false);
  auto bytes = static_cast<std::size_t>(count) * c10::elementSize(dtype);
  if (bytes == 0) return at::empty({0}, dtype);
  if (!is_in_files()) return zeros_in_memory(count, dtype);
  sys::ReservedFile file(folder_, bytes);
  std::byte* begin = file.data();
  at::Tensor tensor = at::from_blob(
      begin, {count}, [self = shared_from_this(), begin](void*) { self->forget(begin); }, dtype);
  Lock lock(mutex_);
  files_.emplace(begin, std::move(file));
  bytes_ += static_cast<std::int64_t>(bytes);
  return tensor;
}

at::Tensor Offload::zeros_in_memory(std::int64_t count, at::ScalarType dtype) {
  at::Tensor memory =
      at::zeros({count}, at::TensorOptions().dtype(dtype).pinned_memory(at::hasCUDA()));
  auto bytes = static_cast<std::int64_t>(memory.nbytes());
  bytes_ += bytes;
  return at::from_blob(
      memory.mutable_data_ptr(), {count},
      [self = shared_from_this(), memory, bytes](void*) { self->bytes_ -= bytes; }, dtype);
}

void Offload::forget(const std::byte* begin) {
  Lock lock(mutex_);
  auto file = files_.extract(begin);
  if (!file.empty()) bytes_ -= static_cast<std::int64_t>(file.mapped().bytes());
}

bool Offload::holds(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.numel() == 0 || !tensor.is_cpu() || !tensor.has_storage())
    return false;
  auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  Lock lock(mutex_);
  auto next = files_.upper_bound(data);
  if (next == files_.begin()) return false;
  const auto& [begin, file] = *std::prev(next);
  return data < begin + file.bytes();
}

void Offload::will_use(const at::Tensor& tensor) noexcept {
  if (holds(tensor)) sys::fetch_ahead(tensor.const_data_ptr(), tensor.nbytes());
}

void Offload::has_used(const at::Tensor& tensor) noexcept {
  if (holds(tensor)) sys::let_go(tensor.const_data_ptr(), tensor.nbytes());
}

void check_room(const Offload& offload, const Group& group,
                const std::vector<NamedParameter>& parameters, int world, const CallOptions& call) {
  std::int64_t bytes = 0;
  for (const auto& parameter : parameters)
    bytes += static_cast<std::int64_t>(parameter.tensor.nbytes());
  sys::ReservedFile room;
  std::exception_ptr refused;
  try {
    room = sys::ReservedFile(offload.folder(), static_cast<std::size_t>(bytes / world));
  } catch (const SystemError&) {
    refused = std::current_exception();
  }
  Group ranks = group;
  at::Tensor failed = at::full({1}, refused ? 1 : 0, at::kInt);
  ranks.all_reduce(failed, Op::sum, call).wait();
  if (refused) std::rethrow_exception(refused);
  check_input(failed.item<int>() == 0,
              "fully_shard: {} of {} ranks cannot put their shards in the folder for offload",
              failed.item<int>(), group.size());
}

}  // namespace lockstep::sharded
