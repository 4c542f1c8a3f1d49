#include "comm/engines/c10d/runner.h"

#include "comm/backend/stream_point.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <utility>

namespace lockstep::c10d_engine {

std::string Engine::objection_to(const at::Tensor& tensor) { return not_on_host(tensor); }

void Engine::finish(c10d::Work& work) { work.wait(); }

void C10dRunner::run(const PostedCall& call) {
  auto device = engine_->device();
  const auto& tensor = call.input.defined() ? call.input : call.output;
  if (!device && tensor.defined()) device = tensor.device();
  if (device && !device->is_cpu()) return run_on(*device, call);
  perform(call);
}

void C10dRunner::run_on(c10::Device device, const PostedCall& call) {
  at::NoGradGuard no_grad;
  const auto stream = stream_of(call, device);
  const c10::StreamGuard on(stream);
  if (call.after) call.after->precede(stream);
  auto there = call;
  if (call.input.defined()) there.input = call.input.to(device);
  if (call.output.defined())
    there.output = call.output.is_same(call.input) ? there.input : call.output.to(device);
  perform(there);
  if (call.output.defined() && !call.output.is_same(there.output)) call.output.copy_(there.output);
  stream.synchronize();
}

c10::Stream C10dRunner::stream_of(const PostedCall& call, c10::Device device) {
  Lock lock(mutex_);
  std::pair key(channel_of(call.collective, call.root, rank_), device.index());
  auto found = streams_.find(key);
  if (found != streams_.end()) return found->second;
  const c10::impl::VirtualGuardImpl streams(device.type());
  auto stream = streams.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  return streams_.emplace(key, stream).first->second;
}

void C10dRunner::close(std::string_view) noexcept {
  Lock lock(launching_);
  closed_ = true;
  engine_->close([this] { return running_ > 0; });
}

at::Tensor C10dRunner::empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

std::shared_ptr<BlockingEngine> C10dRunner::subset(std::span<const int> ranks,
                                                   const std::string& name, int rank,
                                                   Duration timeout) {
  auto size = static_cast<int>(ranks.size());
  return std::make_shared<C10dRunner>(engine_->make_group(name, rank, size, timeout), rank, size);
}

}  // namespace lockstep::c10d_engine
