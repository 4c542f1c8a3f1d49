#include "comm/backend/posted_call.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <numeric>
#include <utility>

namespace lockstep {
namespace {

// A separate tensor object: the caller may give its own tensor another storage (set_()) before the
// call is complete.
at::Tensor detached(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach() : tensor;
}

}  // namespace

PostedCall::PostedCall(const Call& call)
    : CallRecord(record_of(call)),
      input(detached(call.input)),
      output(call.output.is_same(call.input) ? input : detached(call.output)),
      where(call.where),
      after(stream_point(call.input.defined() ? call.input : call.output)),
      id(call.id),
      fingerprint(fingerprint_of(record())) {}

std::int64_t part_elements(const std::vector<std::int64_t>& counts, std::int64_t all, int size,
                           int part) {
  return counts.empty() ? all / size : counts.at(part);
}

std::int64_t part_begin(std::span<const std::int64_t> counts, std::int64_t all, int size,
                        int part) {
  if (counts.empty()) return all / size * part;
  return std::accumulate(counts.begin(), counts.begin() + part, std::int64_t{0});
}

Launched::Launched(c10::Stream posted_on, std::vector<at::Tensor> tensors)
    : posted_on_(posted_on), tensors_(std::move(tensors)) {}

bool Launched::is_complete() {
  while (!steps.empty()) {
    if (!steps.front().reached.is_reached()) return false;
    steps.front().then();
    steps.pop_front();
  }
  if (!end->is_reached()) return false;
  check();
  return true;
}

void Launched::check() const {
  for (const auto& one : checks) one();
}

void Launched::precede_current() {
  end->precede_current();
  const c10::impl::VirtualGuardImpl streams(posted_on_.device_type());
  if (streams.getStream(posted_on_.device()) != posted_on_) return;
  std::vector<at::Tensor> released;
  Lock lock(mutex_);
  released.swap(tensors_);
}

void LaunchedCalls::add(CallId id, std::shared_ptr<Launched> launched, Duration timeout) {
  Lock lock(mutex_);
  calls_.emplace(id, InFlight{.launched = std::move(launched), .timeout = timeout});
}

std::shared_ptr<Launched> LaunchedCalls::wait_for(CallId id, std::function<void()> when_complete) {
  Lock lock(mutex_);
  const auto found = calls_.find(id);
  if (found == calls_.end() || found->second.launched->is_for_host) return nullptr;
  if (!found->second.first_wait) found->second.first_wait = Clock::now();
  found->second.when_complete.push_back(std::move(when_complete));
  return found->second.launched;
}

std::optional<LaunchedCalls::Wait> LaunchedCalls::wait_of(CallId id) {
  Lock lock(mutex_);
  std::optional<Wait> first;
  for (auto call = calls_.lower_bound(id);
       call != calls_.end() && call->first.channel == id.channel; ++call) {
    const InFlight& one = call->second;
    if (!one.first_wait) continue;
    const Wait wait{.waited = Clock::now() - *one.first_wait, .timeout = one.timeout};
    if (!first || wait.timeout - wait.waited < first->timeout - first->waited) first = wait;
  }
  return first;
}

void LaunchedCalls::complete(CallId id) {
  Lock lock(mutex_);
  auto call = calls_.extract(id);
  lock.unlock();
  if (call.empty()) return;
  for (const auto& call_back : call.mapped().when_complete) call_back();
}

}  // namespace lockstep
