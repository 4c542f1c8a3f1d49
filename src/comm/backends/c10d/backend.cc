#include "comm/backends/c10d/backend.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/scope_exit.h"
#include "comm/backend/accelerator.h"
#include "comm/backends/c10d/make.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <thread>

namespace lockstep::c10d_backend {
namespace {

// Time limit for a launch in another thread when the backend is closed.
constexpr auto longest_launch = std::chrono::seconds(1);

}  // namespace

std::string C10dConnection::objection_to(const at::Tensor& tensor) {
  const auto own = device();
  if (!own) return not_on_host(tensor);
  if (tensor.is_cpu() || tensor.device() == *own) return {};
  return formatted("works on {}, the device of this rank; this tensor is on {}", own->str(),
                   tensor.device().str());
}

void C10dConnection::finish(c10d::Work& work) { work.wait(); }

void C10dBackend::run(const PostedCall& call) {
  ScopeExit over([&] {
    if (!has_streams()) return;
    Lock lock(mutex_);
    --queued_[call.id.channel];
  });
  auto device = connection_->device();
  const auto& tensor = call.input.defined() ? call.input : call.output;
  if (!device && tensor.defined()) device = tensor.device();
  if (device && !device->is_cpu()) return run_on(*device, call);
  perform(call);
}

std::shared_ptr<Launched> C10dBackend::launch(const PostedCall& call) {
  if (!has_streams()) return nullptr;
  {
    Lock lock(mutex_);
    auto& queued = queued_[call.id.channel];
    if (queued > 0 || !connection_->is_connected(call)) {
      ++queued;
      return nullptr;
    }
  }
  at::NoGradGuard no_grad;
  const auto device = *connection_->device();
  const c10::impl::VirtualGuardImpl streams(device.type());
  const auto& tensor = call.input.defined() ? call.input : call.output;
  const bool is_on_host = tensor.defined() && tensor.is_cpu();
  const auto stream = stream_of(call, device);
  at::RecordFunction recorded(at::RecordScope::USER_SCOPE);  // for LibTorch's profiler, and NVTX
  if (recorded.isActive()) recorded.before(std::string(name_of(call.collective)));
  auto there = is_on_host ? copied_to(device, call, stream) : call;
  auto launched = std::make_shared<Launched>(
      streams.getStream(device), std::vector{call.input, call.output, there.input, there.output});
  there.launched = launched.get();
  launched->is_for_host = is_on_host || !tensor.defined();
  const c10::StreamGuard on(stream);
  if (call.after) call.after->precede(stream);
  perform(there);
  if (is_on_host && call.output.defined())
    launched->steps.push_back({StreamPoint(device), [this, copies = copy_stream(device),
                                                     from = there.output, to = call.output] {
                                 at::NoGradGuard no_grad;
                                 const c10::StreamGuard on(copies);
                                 copy_back(from, to);
                               }});
  launched->end.emplace(device);
  return launched;
}

at::Tensor C10dBackend::copied_to(c10::Device device, const at::Tensor& host) {
  // LibTorch never frees pinned memory, so use it for small tensors only.
  constexpr std::size_t most_pinned = 64 << 10;
  if (host.nbytes() > most_pinned || !pins_host_memory(device.type())) return host.to(device);
  const auto pinned = at::empty(host.sizes(), host.options().pinned_memory(true)).copy_(host);
  return pinned.to(device, /*non_blocking=*/true);
}

PostedCall C10dBackend::copied_to(c10::Device device, const PostedCall& call,
                                  const c10::Stream& stream) {
  const c10::StreamGuard on(copy_stream(device));
  auto there = call;
  if (call.input.defined()) there.input = copied_to(device, call.input);
  if (call.output.defined())
    there.output = call.output.is_same(call.input) ? there.input : copied_to(device, call.output);
  StreamPoint(device).precede(stream);
  return there;
}

void C10dBackend::run_on(c10::Device device, const PostedCall& call) {
  at::NoGradGuard no_grad;
  const auto stream = stream_of(call, device);
  const c10::StreamGuard on(stream);
  if (call.after) call.after->precede(stream);
  auto there = call;
  if (call.input.defined()) there.input = call.input.to(device);
  if (call.output.defined())
    there.output = call.output.is_same(call.input) ? there.input : call.output.to(device);
  perform(there);
  stream.synchronize();  // may wait for peers, so not while copying_ is held
  if (call.output.defined() && !call.output.is_same(there.output))
    copy_back(there.output, call.output);
}

void C10dBackend::copy_back(const at::Tensor& from, const at::Tensor& to) {
  Lock lock(copying_);
  if (!may_copy_) throw Aborted("the backend is closed");
  to.copy_(from);
}

c10::Stream C10dBackend::stream_of(const PostedCall& call, c10::Device device) {
  return stream_of(channel_of(call.collective, call.root, rank_), device);
}

c10::Stream C10dBackend::copy_stream(c10::Device device) {
  return stream_of(ChannelKey{.source = rank_, .destination = rank_}, device);  // unused by calls
}

c10::Stream C10dBackend::stream_of(ChannelKey channel, c10::Device device) {
  Lock lock(mutex_);
  std::pair key(channel, device.index());
  auto found = streams_.find(key);
  if (found != streams_.end()) return found->second;
  const c10::impl::VirtualGuardImpl streams(device.type());
  auto stream = streams.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  return streams_.emplace(key, stream).first->second;
}

void C10dBackend::close(std::string_view) noexcept {
  {
    Lock lock(copying_);
    may_copy_ = false;
  }
  closed_ = true;
  // A launch may itself wait for a peer, or for room on the device: only the abort ends it.
  std::unique_lock lock(launching_, std::defer_lock);
  for (const auto limit = Deadline::after(longest_launch); !lock.try_lock() && !limit.passed();)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  connection_->close([this] { return running_ > 0; });
}

std::shared_ptr<BlockingCollectives> C10dBackend::subset(std::span<const int> ranks,
                                                         const std::string& name, int rank,
                                                         Duration timeout) {
  auto size = static_cast<int>(ranks.size());
  return std::make_shared<C10dBackend>(connection_->make_group(name, rank, size, timeout), store_,
                                       rank, size, options_);
}

std::shared_ptr<BlockingCollectives> C10dBackend::on_host(const std::string& name,
                                                          Duration timeout) {
  if (!has_streams()) return nullptr;
  auto options = options_;
  options.join_timeout = timeout;
  return std::make_shared<C10dBackend>(make_gloo(store_, name, rank_, size_, options), store_,
                                       rank_, size_, options);
}

}  // namespace lockstep::c10d_backend
