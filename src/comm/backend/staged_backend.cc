#include "comm/backend/staged_backend.h"

#include "comm/backend/tensors.h"
#include "sys/own_process.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

// Pinned if LibTorch supports it: the device then copies without another buffer.
at::Tensor host_memory(const at::Tensor& device) {
  const bool pinned = pins_host_memory(device.device().type());
  return at::empty(device.sizes(), device.options().device(at::kCPU).pinned_memory(pinned));
}

bool is_on_device(const at::Tensor& tensor) { return tensor.defined() && !tensor.is_cpu(); }

}  // namespace

StagedBackend::StagedBackend(std::shared_ptr<Backend> backend)
    : Backend(backend->rank(), backend->size()), backend_(std::move(backend)) {}

void StagedBackend::post(const Call& call) {
  if (!is_on_device(call.input) && !is_on_device(call.output)) return backend_->post(call);
  at::NoGradGuard no_grad;
  Lock lock(mutex_);
  for (const auto* tensor : {&call.input, &call.output}) {
    if (tensor->defined()) settle(*tensor);
  }
  at::Tensor input;
  if (call.input.defined()) {
    input = inside_output(call.input);
    if (!input.defined()) {
      input = host_memory(call.input);
      input.copy_(call.input);  // waits for the stream
    }
  }
  at::Tensor output;
  if (call.output.defined()) {
    output = call.output.is_same(call.input) ? input : inside_output(call.output);
    if (!output.defined()) output = host_memory(call.output);
  }
  backend_->post({call, input, output});
  if (call.output.defined())
    outputs_.push_back({call.id, call.output, output, stream_point(call.output)});
}

void StagedBackend::wait(CallId id) {
  backend_->wait(id);
  Lock lock(mutex_);
  // Copy back earlier outputs too, because their Works may have been dropped; but not those of
  // messages, which may be incomplete.
  auto end = std::ranges::find(outputs_, id, &Output::id);
  if (end != outputs_.end()) ++end;
  for (auto output = outputs_.begin(); output != end;) {
    auto next = std::next(output);
    if (backend_->done(output->id)) bring_back(output);
    output = next;
  }
  for (const auto& [device, end] : brought_back_) end.precede_current();
}

void StagedBackend::bring_back(std::list<Output>::iterator output) {
  at::NoGradGuard no_grad;
  backend_->wait(output->id);
  const c10::Device device = output->device.device();
  const auto last = brought_back_.find(device.index());
  if (last != brought_back_.end()) last->second.precede_current();
  if (output->after) output->after->precede_current();
  output->device.copy_(output->host, /*non_blocking=*/true);
  keep_for_current_stream(output->device);  // the program may have dropped it
  brought_back_.insert_or_assign(device.index(), StreamPoint(device));
  outputs_.erase(output);
}

StagedBackend::Region StagedBackend::region_of(const at::Tensor& tensor) {
  auto bytes = static_cast<std::int64_t>(tensor.element_size());
  auto begin = tensor.storage_offset() * bytes;
  return {tensor.storage().unsafeGetStorageImpl(), begin, begin + tensor.numel() * bytes};
}

at::Tensor StagedBackend::inside_output(const at::Tensor& tensor) const {
  auto inner = region_of(tensor);
  for (auto output = outputs_.rbegin(); output != outputs_.rend(); ++output) {
    auto outer = region_of(output->device);
    bool is_inside = inner.storage == outer.storage && inner.begin >= outer.begin &&
                     inner.end <= outer.end && inner.begin < inner.end;
    if (!is_inside) continue;
    auto bytes = output->host.view({-1}).view(at::kByte);
    return bytes.narrow(0, inner.begin - outer.begin, inner.end - inner.begin)
        .view(tensor.scalar_type())
        .view(tensor.sizes());
  }
  return {};
}

void StagedBackend::settle(const at::Tensor& tensor) {
  auto mine = region_of(tensor);
  for (auto output = outputs_.begin(); output != outputs_.end();) {
    auto theirs = region_of(output->device);
    bool overlaps =
        mine.storage == theirs.storage && mine.begin < theirs.end && theirs.begin < mine.end;
    bool is_inside = mine.begin >= theirs.begin && mine.end <= theirs.end;
    auto next = std::next(output);
    if (overlaps && !is_inside) bring_back(output);
    output = next;
  }
}

at::Tensor StagedBackend::empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return options.device().is_cpu() ? backend_->empty_shared(sizes, options)
                                   : at::empty(sizes, options);
}

std::shared_ptr<Backend> StagedBackend::subset(std::span<const int> ranks, std::string_view name) {
  return sys::make_shared_of_process<StagedBackend>(backend_->subset(ranks, name));
}

std::shared_ptr<Backend> staged(std::shared_ptr<Backend> backend) {
  return accelerator() ? sys::make_shared_of_process<StagedBackend>(std::move(backend))
                       : std::move(backend);
}

}  // namespace lockstep
